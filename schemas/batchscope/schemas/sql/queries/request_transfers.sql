-- Which KV hops of a request ended, and where did their time go?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
SELECT * EXCLUDE (ring_id, serial, batch_id) FROM transfers
WHERE ring_id = $ring_id AND serial = $serial
ORDER BY start_ns
LIMIT 1000
