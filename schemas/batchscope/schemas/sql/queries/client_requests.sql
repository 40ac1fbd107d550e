-- How did each request of a client run look from its client, and how from the engine?
-- param: run VARCHAR
-- Engine columns are NULL where no engine under observation recorded the request. One that ran on
-- two engines (prefill and decode) has a row for each.
WITH sent AS (  -- handed in again, the last word holds
    SELECT DISTINCT ON (ordinal) * FROM client_requests WHERE run = $run ORDER BY ordinal, batch_id DESC
), named AS (
    SELECT ordinal, unnest(keys) AS key FROM sent
), recorded AS (
    SELECT ring_id, serial, unnest(list_distinct([request_key, external_key])) AS key FROM all_requests
), pairs AS (
    SELECT DISTINCT ordinal, ring_id, serial FROM named JOIN recorded USING (key)
)
SELECT c.* EXCLUDE (batch_id, keys),
       e.engine, r.ring_id, r.serial, r.arrived_unix_ns AS engine_arrived_unix_ns,
       r.arrived_unix_ns - c.scheduled_unix_ns AS before_engine_ns,
       r.queue_ns AS engine_queue_ns, r.ttft_ns AS engine_ttft_ns, r.e2e_ns AS engine_e2e_ns,
       r.tpot_ns AS engine_tpot_ns, r.tbt_p99_ns AS engine_tbt_p99_ns, r.tbt_max_ns AS engine_tbt_max_ns,
       r.prompt_tokens AS engine_prompt_tokens, r.cached_tokens, r.output_tokens AS engine_output_tokens,
       r.preemptions, r.finish_reason AS engine_finish_reason, r.verdict AS engine_verdict
FROM sent c
LEFT JOIN pairs p ON p.ordinal = c.ordinal
LEFT JOIN all_requests r ON r.ring_id = p.ring_id AND r.serial = p.serial
LEFT JOIN engines e ON e.ring_id = r.ring_id
ORDER BY c.ordinal, r.ring_id, r.serial
