-- What did a client run and the engine each measure of the same requests: quantiles side by side?
-- param: run VARCHAR
-- Without the warm-up, and only requests that both sides have a figure of. quantile_disc. The
-- client's TTFT and E2E begin at the instant of sending that the trace wanted, the engine's where
-- the request entered it: the difference is network, server front end and the client's lateness. A
-- request that was split over a prefill and a decode engine has no figure of one engine: left out.
WITH sent AS (  -- handed in again, the last word holds
    SELECT DISTINCT ON (ordinal) * FROM client_requests WHERE run = $run ORDER BY ordinal, batch_id DESC
), named AS (
    SELECT ordinal, unnest(keys) AS key FROM sent WHERE NOT warm_up
), recorded AS (
    SELECT ring_id, serial, unnest(list_distinct([request_key, external_key])) AS key FROM all_requests
), pairs AS (
    SELECT DISTINCT ordinal, ring_id, serial FROM named JOIN recorded USING (key)
), both_sides AS (
    SELECT c.ttft_ns, c.tpot_ns, c.tbt_p99_ns, c.e2e_ns,
           r.ttft_ns AS r_ttft_ns, r.tpot_ns AS r_tpot_ns, r.tbt_p99_ns AS r_tbt_p99_ns, r.e2e_ns AS r_e2e_ns
    FROM pairs p
    JOIN sent c ON c.ordinal = p.ordinal
    JOIN all_requests r ON r.ring_id = p.ring_id AND r.serial = p.serial
    JOIN engines e ON e.ring_id = r.ring_id AND e.role = 'both'
), samples AS (
    SELECT unnest(['ttft', 'tpot', 'tbt_p99', 'e2e']) AS measure,
           unnest([ttft_ns, tpot_ns, tbt_p99_ns, e2e_ns]) AS client_ns,
           unnest([r_ttft_ns, r_tpot_ns, r_tbt_p99_ns, r_e2e_ns]) AS engine_ns
    FROM both_sides
)
SELECT measure, count(*)::BIGINT AS requests,
       quantile_disc(client_ns, 0.5) AS client_p50_ns, quantile_disc(engine_ns, 0.5) AS engine_p50_ns,
       quantile_disc(client_ns, 0.9) AS client_p90_ns, quantile_disc(engine_ns, 0.9) AS engine_p90_ns,
       quantile_disc(client_ns, 0.99) AS client_p99_ns, quantile_disc(engine_ns, 0.99) AS engine_p99_ns,
       max(client_ns) AS client_max_ns, max(engine_ns) AS engine_max_ns
FROM samples WHERE client_ns IS NOT NULL AND engine_ns IS NOT NULL
GROUP BY measure ORDER BY measure
