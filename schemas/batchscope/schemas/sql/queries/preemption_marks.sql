-- Which requests lost their place in a range?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
WITH rings AS (FROM rings_of($engine, $dp_rank))
SELECT ring_id, serial, iteration_id, unix_ns, lost_tokens, mode, reason FROM preemptions
WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
ORDER BY unix_ns, serial LIMIT 2000
