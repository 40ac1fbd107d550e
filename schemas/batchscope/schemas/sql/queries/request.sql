-- What is known of the requests with one of these ids or keys, live ones included?
-- param: keys VARCHAR[]
SELECT * EXCLUDE (batch_id) FROM all_requests
WHERE request_key IN (SELECT unnest($keys::VARCHAR[])) OR external_key IN (SELECT unnest($keys::VARCHAR[]))
ORDER BY unix_ns DESC, ring_id, serial
LIMIT 32
