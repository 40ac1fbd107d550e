-- Why did the scheduler admit no more, decision by decision, by stretch of time?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: points BIGINT = 1
-- admission_stop NULL: the queue was emptied, nobody was left waiting for a reason.
WITH rings AS (FROM rings_of($engine, $dp_rank)), decided AS (
    SELECT admission_stop, unix_ns, (unix_ns - $from_ns) // greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
)
SELECT $from_ns + bucket * greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS unix_ns,
       greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket_ns,
       admission_stop, count(*) AS decisions
FROM decided GROUP BY bucket, admission_stop ORDER BY bucket, decisions DESC, admission_stop
