-- How did requests pass from a prefill engine to a decode engine, and what did their clients wait for?
-- param: keys VARCHAR[]
-- The two parts have one key and rings of their own, so what lies between them is a difference on the wall
-- clock: queue + prefill + hop + decode_queue + decode = e2e, and hop is exact but for clock_error_ns. That
-- is the most by which the two rings' clocks can differ when an offer is heard after it was made and an
-- answer after it was given; NULL where not both rings tell of the hop. offer (first token to the offer of
-- its KV), handshake, wait and copy are as the prefill side measured them, on its own clock, to the instant
-- at which it heard that the KV is taken. decode_* are NULL of who never got there. vLLM's decode engine
-- makes the first token once more, and that is the one the client gets: ttft_ns ends there, and there is no
-- first_gap_ns.
WITH parts AS (
    SELECT r.*, coalesce(external_key, request_key) AS key, role, kind = 'vllm' AS again
    FROM all_requests AS r JOIN engines USING (ring_id)
    WHERE role IN ('prefill', 'decode') AND arrived_unix_ns IS NOT NULL
      AND (request_key IN (SELECT unnest($keys::VARCHAR[])) OR external_key IN (SELECT unnest($keys::VARCHAR[])))
), p AS (
    SELECT *, lead(arrived_unix_ns, 1, 9223372036854775807) OVER (PARTITION BY key ORDER BY arrived_unix_ns) AS until_unix_ns
    FROM parts WHERE role = 'prefill'
), d AS (
    SELECT * FROM parts WHERE role = 'decode'
), hop AS (
    SELECT ring_id, serial, direction, unix_ns AS end_unix_ns, unix_ns - (end_ns - start_ns) AS start_unix_ns,
           end_ns - start_ns AS hop_ns, handshake_ns, wait_ns, bytes, blocks, failed
    FROM transfers WHERE serial IN (SELECT serial FROM parts)
)
SELECT p.key AS request_key, p.ring_id AS prefill_ring_id, p.serial AS prefill_serial,
       d.ring_id AS decode_ring_id, d.serial AS decode_serial,
       p.arrived_unix_ns, p.prompt_tokens, CASE WHEN d.again THEN d.output_tokens ELSE p.output_tokens + coalesce(d.output_tokens, 0) END::UBIGINT AS output_tokens,
       coalesce(d.finish_reason, CASE WHEN o.failed THEN 'error' WHEN o.failed IS NULL THEN p.finish_reason END) AS finish_reason,
       p.queue_ns, p.ttft_ns - p.queue_ns AS prefill_ns,
       CASE WHEN d.again THEN d.arrived_unix_ns + d.ttft_ns - p.arrived_unix_ns ELSE p.ttft_ns END AS ttft_ns,
       d.arrived_unix_ns - (p.arrived_unix_ns + p.ttft_ns) AS hop_ns,
       d.queue_ns AS decode_queue_ns, d.e2e_ns - d.queue_ns AS decode_ns,
       d.arrived_unix_ns + d.e2e_ns - p.arrived_unix_ns AS e2e_ns,
       CASE WHEN NOT d.again THEN d.arrived_unix_ns + d.ttft_ns - (p.arrived_unix_ns + p.ttft_ns) END AS first_gap_ns,
       d.tbt_p50_ns, d.tbt_p99_ns, d.tbt_max_ns,
       o.start_unix_ns - (p.arrived_unix_ns + p.ttft_ns) AS offer_ns, o.handshake_ns, o.wait_ns, o.hop_ns - o.handshake_ns - o.wait_ns AS copy_ns, o.bytes, o.blocks, o.failed,
       greatest(abs(i.start_unix_ns - o.start_unix_ns), abs(o.end_unix_ns - i.end_unix_ns)) AS clock_error_ns
FROM p
LEFT JOIN d ON d.key = p.key AND d.arrived_unix_ns >= p.arrived_unix_ns AND d.arrived_unix_ns < p.until_unix_ns
LEFT JOIN hop AS o ON o.ring_id = p.ring_id AND o.serial = p.serial AND o.direction = 'out'
LEFT JOIN hop AS i ON i.ring_id = d.ring_id AND i.serial = d.serial AND i.direction = 'in'
ORDER BY p.arrived_unix_ns DESC
LIMIT 32
