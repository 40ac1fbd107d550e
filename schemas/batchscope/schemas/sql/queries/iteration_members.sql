-- Who was in one iteration, and with what?
-- param: ring_id UBIGINT
-- param: iteration_id UBIGINT
-- emitted_tokens and context_tokens (before the step) as the view members tells them.
SELECT member.serial, requests.request_key, member.phase, member.tokens, member.context_tokens,
       member.emitted AS emitted_tokens, member.recompute, requests.prompt_tokens,
       requests.output_tokens, requests.preemptions
FROM members(CAST($ring_id AS UBIGINT), CAST($iteration_id AS UBIGINT), CAST($iteration_id AS UBIGINT)) AS member
LEFT JOIN all_requests AS requests USING (ring_id, serial)
ORDER BY member.phase DESC, member.tokens DESC, member.serial LIMIT 5000
