-- Who was left out, how often, for what reason, by stretch of time?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: points BIGINT = 1
-- left_out_mean is requests left out per decision, over all decisions of the bucket, so the reasons
-- of one bucket add up. unix_ns is the last completion in the bucket, as in timeline.
WITH rings AS (FROM rings_of($engine, $dp_rank)), decided AS (
    SELECT ring_id, iteration_id, unix_ns,
           (unix_ns - $from_ns) // greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
      AND completed_at_ns IS NOT NULL
), buckets AS (
    SELECT bucket, max(unix_ns) AS unix_ns, count(*) AS decisions FROM decided GROUP BY bucket
), left_out AS (
    SELECT bucket, reason, sum(requests)::BIGINT AS requests,
           count(DISTINCT (ring_id, iteration_id)) AS decisions_with,
           sum(requests) FILTER (position = 'head')::BIGINT AS head_requests,
           sum(requests) FILTER (position = 'behind')::BIGINT AS behind_requests
    FROM decided JOIN deferrals USING (ring_id, iteration_id)
    WHERE deferrals.unix_ns < $to_ns
    GROUP BY bucket, reason
)
SELECT buckets.unix_ns, reason, requests, decisions, decisions_with,
       requests / decisions AS left_out_mean, head_requests, behind_requests
FROM left_out JOIN buckets USING (bucket) ORDER BY bucket, requests DESC, reason
