-- What is the engine doing: rates over a window, and its state after the last decision?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- Rates are over the part of the window in which the engine was attached, by the engine's own clock
-- set as at the newest decision: a step of the wall clock (of up to 10 minutes) bends none. The state
-- is that of the newest decision of the last hour of each live ring, summed; NULL when there is none.
-- No decision says that an engine went idle: none runs or waits beyond those that live, and KV use is
-- unknown then.
WITH rings AS (FROM rings_of($engine, $dp_rank)), span AS (
    SELECT CASE WHEN count(*) > 0
           THEN nullif(greatest($to_ns - greatest($from_ns, min(attached_unix_ns)), 0), 0) / 1e9 END AS window_s
    FROM rings
), newest AS (
    SELECT ring_id, max_by({r: running, w: waiting, u: kv_used_blocks, e: kv_evictable_blocks,
                            t: kv_total_blocks, b: budget_tokens, open: completed_at_ns IS NULL,
                            since: unix_ns}, iteration_id) AS last,
           max_by(unix_ns - coalesce(completed_at_ns, scheduled_at_ns), iteration_id) AS ahead_ns
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings)
      AND unix_ns > least($from_ns, $to_ns - 3600000000000) AND unix_ns <= $to_ns
    GROUP BY ring_id
), worked AS (
    SELECT * FROM all_iterations JOIN newest USING (ring_id)
    WHERE unix_ns > $from_ns - 600000000000 AND unix_ns <= $to_ns + 600000000000
      AND completed_at_ns > $from_ns - ahead_ns AND completed_at_ns <= $to_ns - ahead_ns
), sums AS (
    SELECT count(*) FILTER (phase <> 'empty' AND NOT dummy) AS iterations,
           coalesce(sum(prefill_tokens), 0)::BIGINT AS prefill_tokens,
           coalesce(sum(decode_tokens), 0)::BIGINT AS decode_tokens,
           coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
           sum(recomputed_tokens)::BIGINT AS recomputed_tokens,
           avg((prefill_tokens + decode_tokens) / nullif(budget_tokens, 0)) AS budget_used_ratio,
           max(kv_used_blocks / nullif(kv_total_blocks, 0)) AS kv_used_ratio_max
    FROM worked
), living AS (
    SELECT ring_id, count(*) AS live FROM requests_open WHERE finished_at_ns IS NULL GROUP BY ring_id
), settled AS (
    SELECT last, coalesce(live, 0) AS live
    FROM newest JOIN rings USING (ring_id) LEFT JOIN living USING (ring_id)
    WHERE state = 'live' AND last.since > $to_ns - 3600000000000
), state AS (
    SELECT sum(least(last.r, live))::BIGINT AS running, sum(least(last.w, live))::BIGINT AS waiting,
           sum(last.u) FILTER (live > 0)::BIGINT AS kv_used_blocks,
           sum(last.e) FILTER (live > 0)::BIGINT AS kv_evictable_blocks,
           sum(last.t)::BIGINT AS kv_total_blocks, max(last.b)::BIGINT AS budget_tokens,
           count(*) FILTER (last.open) AS in_flight,
           min(last.since) FILTER (last.open) AS in_flight_since_unix_ns
    FROM settled
), lost AS (
    SELECT count(*) AS preemptions, coalesce(sum(lost_tokens), 0)::BIGINT AS preempted_tokens
    FROM preemptions
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns > $from_ns AND unix_ns <= $to_ns
)
SELECT window_s, iterations, iterations / window_s AS iterations_per_s,
       prefill_tokens / window_s AS prefill_tokens_per_s,
       decode_tokens / window_s AS decode_tokens_per_s,
       output_tokens / window_s AS output_tokens_per_s,
       recomputed_tokens, budget_used_ratio, kv_used_ratio_max,
       running, waiting, in_flight, in_flight_since_unix_ns, budget_tokens,
       kv_used_blocks, kv_evictable_blocks, kv_total_blocks, preemptions, preempted_tokens
FROM span, sums, state, lost
