-- What does each stretch of time hold: tokens against the budget, interval, queue, KV pages?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: points BIGINT = 1000
-- Buckets by integer division; a bucket of one iteration is that iteration. unix_ns is the last
-- completion in the bucket. The KV columns are one decision's: the one that used most blocks.
WITH rings AS (FROM rings_of($engine, $dp_rank)), worked AS (
    SELECT *, (unix_ns - $from_ns) // greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket,
           phase <> 'empty' AND NOT dummy AS useful
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
      AND completed_at_ns IS NOT NULL
)
SELECT max(unix_ns) AS unix_ns, greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket_ns,
       count(*) FILTER (useful) AS iterations,
       avg(prefill_tokens) FILTER (useful) AS prefill_tokens_mean,
       avg(decode_tokens) FILTER (useful) AS decode_tokens_mean,
       sum(output_tokens)::BIGINT AS output_tokens,
       max(prefill_tokens + decode_tokens) FILTER (useful)::BIGINT AS batch_tokens_max,
       max(budget_tokens) AS budget_tokens,
       min(interval_ns) AS interval_min_ns, avg(interval_ns) AS interval_mean_ns,
       max(interval_ns) AS interval_max_ns,
       avg(running) AS running_mean, max(running) AS running_max,
       avg(waiting) AS waiting_mean, max(waiting) AS waiting_max,
       max_by(kv_used_blocks, kv_used_blocks) AS kv_used_blocks,
       max_by(kv_evictable_blocks, kv_used_blocks) AS kv_evictable_blocks,
       max_by(kv_total_blocks, kv_used_blocks) AS kv_total_blocks
FROM worked GROUP BY bucket ORDER BY bucket
