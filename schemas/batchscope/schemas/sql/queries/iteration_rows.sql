-- What did each iteration hold, near an instant of a range?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: at_ns BIGINT
-- param: rows BIGINT = 300
-- The iterations nearest to at_ns, in order of completion; in_range says how many the range has.
-- What is in flight has completed FALSE and stands at its decision.
WITH rings AS (FROM rings_of($engine, $dp_rank)), ranged AS (
    SELECT *, count(*) OVER () AS in_range FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
), near AS (
    SELECT * FROM ranged ORDER BY abs(unix_ns - $at_ns), ring_id, iteration_id LIMIT least(greatest($rows, 0), 5000)
)
SELECT ring_id, iteration_id, unix_ns, completed_at_ns IS NOT NULL AS completed,
       unix_ns - coalesce(completed_at_ns - scheduled_at_ns, 0) AS scheduled_unix_ns,
       phase, prefill_tokens, decode_tokens, budget_tokens, output_tokens, recomputed_tokens,
       prefill_members, decode_members, interval_ns, host_ns, exec_ns, schedule_ns, running, waiting,
       admission_stop, kv_used_blocks, kv_evictable_blocks, kv_total_blocks, observer_ns, in_range
FROM near ORDER BY unix_ns, ring_id, iteration_id
