-- One row per finished request; live ones are in requests_open (same columns).
CREATE TABLE IF NOT EXISTS requests (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,        -- numbered from 1 in its ring
    request_key VARCHAR,             -- salted hash (16 hex digits) or plain id; NULL: ids are not recorded
    external_key VARCHAR,            -- the same for the id that the client knows
    trace_id VARCHAR,                -- W3C, 32 hex digits; NULL: none
    parent_span_id VARCHAR,          -- 16 hex digits
    model VARCHAR, lora VARCHAR, tenant VARCHAR, priority INTEGER,
    prompt_tokens UINTEGER,          -- NULL: its announcement was lost
    max_tokens UINTEGER,
    arrived_at_ns BIGINT,            -- a; NULL: arrived before we attached
    first_scheduled_at_ns BIGINT,    -- decision that first admitted it
    first_token_at_ns BIGINT,        -- completion that emitted its first token
    last_token_at_ns BIGINT,
    finished_at_ns BIGINT,           -- NULL while live
    arrived_unix_ns BIGINT,
    unix_ns BIGINT NOT NULL,         -- its end (live: the last record seen) on the wall clock
    finish_reason VARCHAR,           -- stop, length, abort, error, shed, unknown; NULL while live
    prefill_tokens UBIGINT NOT NULL, -- prompt work, recompute included
    decode_tokens UBIGINT NOT NULL,  -- tokens scheduled as decode member
    output_tokens UINTEGER NOT NULL, -- tokens emitted, as we counted
    engine_output_tokens UINTEGER,   -- the same as the engine says at its end
    cached_tokens UINTEGER,          -- prompt tokens found in the prefix cache at first admission
    cached_on_resume_tokens UBIGINT NOT NULL, -- likewise at re-admissions
    recomputed_tokens UBIGINT NOT NULL, -- prefill of re-admissions
    steps UBIGINT NOT NULL,          -- member steps
    preemptions UINTEGER NOT NULL,
    lost_tokens UBIGINT NOT NULL,    -- computed KV given up by preemptions
    deferrals UBIGINT NOT NULL,      -- decisions that left it waiting
    in_step_ns BIGINT,               -- arrival to the next decision
    queue_ns BIGINT,                 -- arrival to first scheduled
    ttft_ns BIGINT,                  -- arrival to first token
    e2e_ns BIGINT,                   -- arrival to last token
    tpot_ns BIGINT,                  -- (last - first token) / (output_tokens - 1); NULL below 2 tokens
    tbt_p50_ns BIGINT, tbt_p90_ns BIGINT, tbt_p95_ns BIGINT, tbt_p99_ns BIGINT, tbt_max_ns BIGINT, -- of its own gaps, quantile_disc
    on_time_tokens UINTEGER,         -- tokens within the SLO's deadlines
    slo VARCHAR,                     -- SLO it was judged by
    slo_version UINTEGER,
    verdict VARCHAR,                 -- met, missed, undetermined, failed, aborted, shed; NULL while live
    engine_queue_ns BIGINT, engine_ttft_ns BIGINT, engine_e2e_ns BIGINT, -- the engine's own figures
    broken BOOLEAN NOT NULL,         -- records about it were lost: figures that need them are NULL
    batch_id UBIGINT NOT NULL
);
