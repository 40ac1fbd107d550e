-- Which gaps of a request were not exactly one interval?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
SELECT * EXCLUDE (ring_id, serial, batch_id) FROM gaps
WHERE ring_id = $ring_id AND serial = $serial
ORDER BY unix_ns, iteration_id
LIMIT 10000
