-- What did a request wait for, per admission and root cause?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
SELECT * EXCLUDE (ring_id, serial, batch_id) FROM waits
WHERE ring_id = $ring_id AND serial = $serial
ORDER BY admission, reason
LIMIT 10000
