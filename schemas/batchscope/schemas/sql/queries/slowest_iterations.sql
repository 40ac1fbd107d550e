-- Which iterations took longest, and what was in them?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: rows BIGINT = 20
WITH rings AS (FROM rings_of($engine, $dp_rank))
SELECT ring_id, iteration_id, unix_ns, interval_ns, host_ns, exec_ns, phase, prefill_tokens, decode_tokens,
       budget_tokens, prefill_members, decode_members, decode_gap_members, waiting, admission_stop
FROM all_iterations
WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
  AND interval_ns IS NOT NULL
ORDER BY interval_ns DESC, ring_id, iteration_id LIMIT least(greatest($rows, 0), 5000)
