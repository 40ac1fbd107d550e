-- Who arrived when, with how many tokens: what can be replayed as a trace?
-- param: engine VARCHAR
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: after_ns BIGINT = NULL
-- param: after_ring UBIGINT = NULL
-- param: after_serial BIGINT = NULL
-- param: rows BIGINT = 20000
-- By arrival, at most `rows` of them; the page after it begins behind the last row's
-- (arrived_unix_ns, ring_id, serial). lasted_ns: arrival to end. Requests whose arrival nobody saw are left out.
SELECT arrived_unix_ns, ring_id, serial, prompt_tokens, output_tokens, max_tokens, finish_reason, broken,
       finished_at_ns - arrived_at_ns AS lasted_ns, tenant, model
FROM all_requests
WHERE ring_id IN (SELECT ring_id FROM engines WHERE engine = $engine)
  AND arrived_unix_ns >= $from_ns AND arrived_unix_ns < $to_ns
  AND (CAST($after_ns AS BIGINT) IS NULL OR (arrived_unix_ns, ring_id, serial::BIGINT)
       > (CAST($after_ns AS BIGINT), CAST($after_ring AS UBIGINT), CAST($after_serial AS BIGINT)))
ORDER BY arrived_unix_ns, ring_id, serial
LIMIT greatest($rows, 0)
