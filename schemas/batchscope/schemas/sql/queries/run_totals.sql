-- What did an engine do since an instant, in one row of totals and quantiles?
-- param: engine VARCHAR = NULL
-- param: from_unix_ns BIGINT = 0
-- Sums over requests, cached_tokens and on_time_tokens, are of those that arrived since.
-- every gap with its weight: the ordinary ones by interval, the others one by one, and n tokens at
-- one instant as one gap and n - 1 gaps of 0
WITH rings AS (
    SELECT ring_id, attached_unix_ns FROM engines WHERE $engine IS NULL OR engine = $engine
),
its AS (
    SELECT * FROM all_iterations SEMI JOIN rings USING (ring_id)
    WHERE completed_at_ns IS NOT NULL AND unix_ns >= $from_unix_ns
),
reqs AS (SELECT * FROM all_requests SEMI JOIN rings USING (ring_id)),
came AS (SELECT * FROM reqs WHERE coalesce(arrived_unix_ns, $from_unix_ns) >= $from_unix_ns),
done AS (SELECT * FROM reqs WHERE finish_reason IS NOT NULL AND unix_ns >= $from_unix_ns),
span AS (
    SELECT (max(unix_ns) - greatest($from_unix_ns, (SELECT min(attached_unix_ns) FROM rings))) / 1e9
        AS seconds FROM its
),
gap AS (
    SELECT interval_ns AS gap_ns, sum(decode_gap_members) AS n FROM its
    WHERE decode_gap_members > 0 GROUP BY 1
    UNION ALL
    SELECT gap_ns, 1 FROM gaps SEMI JOIN rings USING (ring_id) WHERE unix_ns >= $from_unix_ns
    UNION ALL
    SELECT 0, sum(tokens - 1) FROM gaps SEMI JOIN rings USING (ring_id)
    WHERE unix_ns >= $from_unix_ns HAVING sum(tokens - 1) > 0
),
ranked AS (SELECT gap_ns, sum(n) OVER (ORDER BY gap_ns) AS upto, sum(n) OVER () AS total FROM gap)
SELECT
    (SELECT seconds FROM span) AS seconds,
    (SELECT count(*) FROM its) AS iterations,
    (SELECT coalesce(sum(prefill_members + decode_members), 0) FROM its) AS member_steps,
    (SELECT count(*) FROM came) AS arrived,
    (SELECT count(*) FROM done WHERE finish_reason IN ('stop', 'length')) AS finished,
    (SELECT count(*) FROM done WHERE finish_reason = 'abort') AS aborted,
    (SELECT count(*) FROM done WHERE finish_reason IN ('error', 'shed')) AS failed,
    -- alive when last seen: `unknown` is the end of those that we stopped looking at
    (SELECT count(*) FROM reqs WHERE finish_reason IS NULL OR finish_reason = 'unknown') AS live,
    coalesce((SELECT sum(prefill_tokens) FROM its), 0) AS prefill_tokens,
    coalesce((SELECT sum(decode_tokens) FROM its), 0) AS decode_tokens,
    coalesce((SELECT sum(output_tokens) FROM its), 0) AS output_tokens,
    coalesce((SELECT sum(recomputed_tokens) FROM its), 0) AS recomputed_tokens,
    coalesce((SELECT sum(cached_tokens) FROM came), 0) AS cached_tokens,
    (SELECT count(*) FROM preemptions SEMI JOIN rings USING (ring_id) WHERE unix_ns >= $from_unix_ns) AS preemptions,
    (SELECT quantile_disc(ttft_ns, 0.5) FROM done) AS ttft_p50_ns,
    (SELECT quantile_disc(ttft_ns, 0.99) FROM done) AS ttft_p99_ns,
    (SELECT min(gap_ns) FROM ranked WHERE upto >= 0.5 * total) AS tbt_p50_ns,
    (SELECT min(gap_ns) FROM ranked WHERE upto >= 0.99 * total) AS tbt_p99_ns,
    (SELECT count(*) FROM done WHERE verdict = 'met') AS met,
    (SELECT count(*) FROM done WHERE verdict = 'missed') AS missed,
    coalesce((SELECT sum(on_time_tokens) FROM came), 0) AS on_time_tokens,
    (SELECT max(kv_used_blocks / kv_total_blocks) FROM its) AS kv_used_ratio_max,
    (SELECT sum(kv_waste_tokens::DOUBLE * interval_ns)
        / nullif(sum((kv_waste_tokens + kv_context_tokens)::DOUBLE * interval_ns), 0) FROM its) AS kv_waste_ratio,
    (SELECT quantile_disc(observer_ns, 0.5) FROM its) AS observer_p50_ns,
    (SELECT quantile_disc(observer_ns, 0.99) FROM its) AS observer_p99_ns,
    (SELECT arg_max(running, unix_ns) FROM its) AS running,
    (SELECT arg_max(waiting, unix_ns) FROM its) AS waiting,
    (SELECT arg_max(kv_used_blocks / kv_total_blocks, unix_ns) FROM its) AS kv_used_ratio,
    coalesce((SELECT sum(checks) FROM audit SEMI JOIN rings USING (ring_id)), 0) AS audit_checks,
    coalesce((SELECT sum(violations) FROM audit SEMI JOIN rings USING (ring_id)), 0) AS audit_violations,
    coalesce((SELECT sum(records) FROM losses SEMI JOIN rings USING (ring_id)), 0) AS lost_records
