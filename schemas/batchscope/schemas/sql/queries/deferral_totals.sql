-- How many requests were left out of a decision since an instant, by root cause?
-- param: engine VARCHAR = NULL
-- param: from_unix_ns BIGINT = 0
SELECT reason, sum(requests)::BIGINT AS requests
FROM deferrals
SEMI JOIN (SELECT ring_id FROM engines WHERE $engine IS NULL OR engine = $engine) USING (ring_id)
WHERE unix_ns >= $from_unix_ns
GROUP BY reason ORDER BY requests DESC, reason
