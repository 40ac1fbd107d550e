-- Was the work useful: requests by verdict and tokens on time, beside everything that finished?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: points BIGINT = 1
-- By the time a request ended. output_tokens and on_time_tokens are of the requests that ended in
-- the bucket and had an SLO to be judged by, so their ratio is true. arrived is by arrival.
-- A request whose end nobody saw (alive when the adapter left, or its end was lost) has not ended.
WITH rings AS (FROM rings_of($engine, $dp_rank)), events AS (
    SELECT unix_ns, 'ended' AS event, verdict, output_tokens, on_time_tokens FROM requests
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
      AND finished_at_ns IS NOT NULL AND NOT (finish_reason IS NOT DISTINCT FROM 'unknown' AND broken)
    UNION ALL
    SELECT arrived_unix_ns, 'arrived', NULL, NULL, NULL FROM all_requests
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns
      AND arrived_unix_ns >= $from_ns AND arrived_unix_ns < $to_ns
), bucketed AS (
    SELECT *, (unix_ns - $from_ns) // greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket FROM events
)
SELECT $from_ns + bucket * greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS unix_ns,
       greatest(($to_ns - $from_ns) // greatest($points, 1), 1) AS bucket_ns,
       count(*) FILTER (event = 'arrived') AS arrived,
       count(*) FILTER (event = 'ended') AS ended,
       count(*) FILTER (verdict = 'met') AS met,
       count(*) FILTER (verdict = 'missed') AS missed,
       count(*) FILTER (verdict = 'undetermined') AS undetermined,
       count(*) FILTER (verdict = 'failed') AS failed,
       count(*) FILTER (verdict = 'aborted') AS aborted,
       count(*) FILTER (verdict = 'shed') AS shed,
       count(*) FILTER (event = 'ended' AND verdict IS NULL) AS unjudged,
       sum(output_tokens) FILTER (on_time_tokens IS NOT NULL)::BIGINT AS output_tokens,
       sum(on_time_tokens)::BIGINT AS on_time_tokens
FROM bucketed GROUP BY bucket ORDER BY bucket
