-- When did a request lose its place?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
SELECT * EXCLUDE (ring_id, serial, batch_id) FROM preemptions
WHERE ring_id = $ring_id AND serial = $serial
ORDER BY at_ns
LIMIT 10000
