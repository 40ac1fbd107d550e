-- How long do intervals, first tokens and gaps between tokens take: quantiles by stretch of time?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: points BIGINT = 1
-- quantile_disc of weighted samples, token-weighted for tbt: iterations.decode_gap_members says how
-- many gaps are exactly that interval, every other gap is a row of gaps, and n tokens at one instant
-- are n - 1 gaps of 0. Exact up to 10 minutes; beyond, samples are rounded to log buckets of 2 %.
-- A first token counts when it was emitted; live requests count too.
WITH rings AS (FROM rings_of($engine, $dp_rank)), samples AS (
    SELECT 'interval' AS measure, unix_ns, interval_ns AS ns, 1 AS weight
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
    UNION ALL
    SELECT 'tbt', unix_ns, interval_ns, decode_gap_members
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
    UNION ALL
    SELECT 'tbt', unix_ns, unnest([gap_ns, 0]), unnest([1, tokens - 1])
    FROM gaps
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
    UNION ALL
    SELECT 'ttft', arrived_unix_ns + ttft_ns, ttft_ns, 1
    FROM all_requests
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns
      AND arrived_unix_ns + ttft_ns >= $from_ns AND arrived_unix_ns + ttft_ns < $to_ns
), grouped AS (
    SELECT measure, (unix_ns - $from_ns) // greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket,
           CASE WHEN $to_ns - $from_ns > 600000000000 AND ns > 0
                THEN CAST(pow(1.02, round(ln(ns) / ln(1.02))) AS BIGINT) ELSE ns END AS ns,
           sum(weight)::BIGINT AS weight
    FROM samples WHERE ns IS NOT NULL AND weight > 0
    GROUP BY ALL
), ranked AS (
    SELECT *, sum(weight) OVER (PARTITION BY measure, bucket ORDER BY ns) AS upto,
           sum(weight) OVER (PARTITION BY measure, bucket) AS total
    FROM grouped
)
SELECT $from_ns + bucket * greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS unix_ns, measure,
       any_value(total)::BIGINT AS samples,
       min(ns) FILTER (upto * 100 >= total * 50) AS p50_ns,
       min(ns) FILTER (upto * 100 >= total * 99) AS p99_ns,
       max(ns) AS max_ns,
       $to_ns - $from_ns <= 600000000000 AS exact
FROM ranked GROUP BY measure, bucket ORDER BY measure, bucket
