-- How are the gaps between successive tokens distributed?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- Log buckets of 5 %: lower_ns <= gap < upper_ns; the gaps of 0 (further tokens of one step) have
-- lower_ns 0 and upper_ns 1. Token-weighted.
WITH rings AS (FROM rings_of($engine, $dp_rank)), samples AS (
    SELECT interval_ns AS ns, decode_gap_members AS weight FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
    UNION ALL
    SELECT unnest([gap_ns, 0]), unnest([1, tokens - 1]) FROM gaps
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
), bucketed AS (
    SELECT CASE WHEN ns > 0 THEN CAST(floor(ln(ns) / ln(1.05)) AS BIGINT) END AS step, weight
    FROM samples WHERE ns IS NOT NULL AND weight > 0
)
SELECT CAST(CASE WHEN step IS NULL THEN 0 ELSE ceil(pow(1.05, step)) END AS BIGINT) AS lower_ns,
       CAST(CASE WHEN step IS NULL THEN 1 ELSE ceil(pow(1.05, step + 1)) END AS BIGINT) AS upper_ns,
       sum(weight)::BIGINT AS gaps
FROM bucketed GROUP BY step ORDER BY step NULLS FIRST
