-- In which stretches of equal steps was a request computed?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
SELECT * EXCLUDE (ring_id, serial, batch_id) FROM all_runs
WHERE ring_id = $ring_id AND serial = $serial
ORDER BY first_iteration
LIMIT 10000
