-- What do front ends add: TTFT and time per token in the core and at the client's stream, per engine?
-- param: engine VARCHAR
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- Requests that ended well in the window and that both saw whole, joined by their key; one reply at
-- the end (deliveries = 1) has no time per token at its stream. front_ns: arrival at the front end to
-- arrival in the core. lost_tokens: generated and not delivered; 0 where a text met a stop string late.
WITH core AS (
    SELECT r.* FROM requests AS r JOIN engines AS e USING (ring_id)
    WHERE e.engine = $engine AND r.unix_ns >= $from_ns AND r.unix_ns < $to_ns
      AND r.finish_reason IN ('stop', 'length') AND NOT r.broken
), both_ends AS (
    SELECT core.arrived_unix_ns - d.arrived_unix_ns AS front_ns, d.lag_first_ns, d.lag_mean_ns, d.lag_max_ns,
           core.output_tokens - d.delivered_tokens AS lost_tokens, d.deliveries,
           core.ttft_ns AS core_ttft_ns, d.ttft_ns, core.tpot_ns AS core_tpot_ns, d.tpot_ns,
           core.tbt_max_ns AS core_gap_max_ns, d.gap_max_ns
    FROM core JOIN deliveries AS d ON d.request_key = core.request_key
    WHERE NOT d.broken AND d.arrived_unix_ns <= core.unix_ns AND d.unix_ns >= core.arrived_unix_ns
)
SELECT count(*) AS requests, count(*) FILTER (deliveries > 1) AS streamed,
       sum(lost_tokens)::BIGINT AS lost_tokens,
       quantile_disc(front_ns, 0.5) AS front_p50_ns, quantile_disc(front_ns, 0.99) AS front_p99_ns,
       quantile_disc(lag_first_ns, 0.5) AS lag_first_p50_ns,
       quantile_disc(lag_first_ns, 0.99) AS lag_first_p99_ns,
       quantile_disc(lag_mean_ns, 0.5) AS lag_mean_p50_ns, max(lag_max_ns) AS lag_max_ns,
       quantile_disc(core_ttft_ns, 0.5) FILTER (deliveries > 1) AS core_ttft_p50_ns,
       quantile_disc(core_ttft_ns, 0.99) FILTER (deliveries > 1) AS core_ttft_p99_ns,
       quantile_disc(ttft_ns, 0.5) FILTER (deliveries > 1) AS ttft_p50_ns,
       quantile_disc(ttft_ns, 0.99) FILTER (deliveries > 1) AS ttft_p99_ns,
       quantile_disc(core_tpot_ns, 0.5) FILTER (deliveries > 1) AS core_tpot_p50_ns,
       quantile_disc(tpot_ns, 0.5) FILTER (deliveries > 1) AS tpot_p50_ns,
       max(core_gap_max_ns) FILTER (deliveries > 1) AS core_gap_max_ns,
       max(gap_max_ns) FILTER (deliveries > 1) AS gap_max_ns
FROM both_ends
