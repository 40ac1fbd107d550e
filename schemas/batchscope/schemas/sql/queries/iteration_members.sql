-- Who was in one iteration, and with what?
-- param: ring_id UBIGINT
-- param: iteration_id UBIGINT
SELECT runs.serial, requests.request_key, runs.phase, runs.tokens_each AS tokens,
       runs.context_first + (CAST($iteration_id AS BIGINT) - runs.first_iteration::BIGINT) // runs.stride
           * runs.tokens_each AS context_tokens,
       coalesce(runs.emitted_each,
                runs.emitted[(CAST($iteration_id AS BIGINT) - runs.first_iteration::BIGINT) // runs.stride + 1])
           AS emitted_tokens,
       runs.recompute, requests.prompt_tokens, requests.output_tokens, requests.preemptions
FROM all_runs AS runs
LEFT JOIN all_requests AS requests USING (ring_id, serial)
WHERE runs.ring_id = CAST($ring_id AS UBIGINT)
  AND runs.first_iteration <= CAST($iteration_id AS UBIGINT)
  AND runs.first_iteration + (runs.n_iterations - 1)::UBIGINT * runs.stride >= CAST($iteration_id AS UBIGINT)
  AND (CAST($iteration_id AS BIGINT) - runs.first_iteration::BIGINT) % runs.stride = 0
ORDER BY runs.phase DESC, runs.tokens_each DESC, runs.serial
