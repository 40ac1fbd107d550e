-- Identical consecutive steps of one request as one row; open ones are in runs_open (same columns).
CREATE TABLE IF NOT EXISTS runs (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,        -- the request
    first_iteration UBIGINT NOT NULL, -- iteration_id of its first step
    n_iterations UINTEGER NOT NULL,  -- steps, at most 4096
    stride UINTEGER NOT NULL,        -- iteration_ids between steps: 1, or the batches in flight
    phase VARCHAR NOT NULL,          -- prefill or decode
    recompute BOOLEAN NOT NULL,      -- prefill work that a preemption caused
    tokens_each UINTEGER NOT NULL,   -- tokens scheduled in each step
    emitted_each UINTEGER,           -- tokens emitted in each step; NULL when they differ
    emitted UINTEGER[],              -- per step when they differ (speculative decoding), else NULL
    context_first UINTEGER,           -- KV tokens computed before the first step; NULL: unknown after a loss
    unix_ns BIGINT NOT NULL,         -- completion of the last step on the wall clock
    batch_id UBIGINT NOT NULL
);
