-- One row per request of a client run, as its client saw it. Latencies count from the instant at
-- which the trace wanted it sent, so that a late client can't hide a wait.
CREATE TABLE IF NOT EXISTS client_requests (
    run VARCHAR NOT NULL,            -- joins client_runs
    ordinal UBIGINT NOT NULL,        -- number in its trace, from 0
    request_id VARCHAR NOT NULL,     -- sent as X-Request-Id
    keys VARCHAR[] NOT NULL,         -- every spelling under which an engine may have recorded it: ids and their hashes
    scheduled_unix_ns BIGINT NOT NULL, -- when the trace wanted it sent
    unix_ns BIGINT NOT NULL,         -- its end; of an unsent one the instant of its sending
    warm_up BOOLEAN NOT NULL,        -- left out of the figures
    status VARCHAR NOT NULL,         -- ok, shed, refused, failed, unreachable, timeout, broken, left, unsent, cut
    http_status UINTEGER,            -- NULL: no answer
    finish_reason VARCHAR,           -- as the server says it
    prompt_tokens UINTEGER,          -- counted by the server (usage)
    output_tokens UINTEGER,
    lateness_ns BIGINT,              -- sent after its instant: the client's own delay; NULL: not sent
    ttft_ns BIGINT,                  -- to the first token
    e2e_ns BIGINT,                   -- to the last token of a whole answer
    tpot_ns BIGINT,                  -- (last - first token) / (output_tokens - 1); NULL below 2 tokens
    tbt_p50_ns BIGINT, tbt_p90_ns BIGINT, tbt_p95_ns BIGINT, tbt_p99_ns BIGINT, tbt_max_ns BIGINT, -- of its own gaps, quantile_disc
    verdict VARCHAR,                 -- met, missed, undetermined, failed, aborted, shed; NULL: no SLO
    batch_id UBIGINT NOT NULL
);
