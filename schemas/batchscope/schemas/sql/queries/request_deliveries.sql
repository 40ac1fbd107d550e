-- What did front ends hand to the stream of a request, and how long after the core had it?
-- param: ring_id UBIGINT
-- param: serial UINTEGER
-- first_unix_ns, last_unix_ns: its first and last hand-over on the wall clock. Where a client's ids
-- return, the lives must overlap.
SELECT d.* EXCLUDE (batch_id),
       coalesce(d.arrived_unix_ns + d.first_at_ns - d.arrived_at_ns,
                d.unix_ns + d.first_at_ns - d.finished_at_ns) AS first_unix_ns,
       coalesce(d.arrived_unix_ns + d.last_at_ns - d.arrived_at_ns,
                d.unix_ns + d.last_at_ns - d.finished_at_ns) AS last_unix_ns
FROM all_requests AS r JOIN all_deliveries AS d ON d.request_key = r.request_key
WHERE r.ring_id = $ring_id AND r.serial = $serial
  AND coalesce(d.arrived_unix_ns, d.unix_ns) <= r.unix_ns
  AND d.unix_ns >= coalesce(r.arrived_unix_ns, r.unix_ns)
ORDER BY d.unix_ns, d.ring_id, d.serial
LIMIT 32
