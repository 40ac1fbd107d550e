-- Gaps between successive tokens of one request that are not exactly one interval (those are counted
-- in iterations.decode_gap_members).
CREATE TABLE IF NOT EXISTS gaps (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,        -- the request
    iteration_id UBIGINT NOT NULL,   -- step that emitted the token which ends the gap
    from_iteration UBIGINT NOT NULL, -- step that emitted the token before
    gap_ns BIGINT NOT NULL,          -- between the two completions
    tokens UINTEGER NOT NULL,        -- emitted at its end; n tokens are this gap and n - 1 gaps of 0
    preempted BOOLEAN NOT NULL,      -- a preemption lies within
    unix_ns BIGINT NOT NULL,         -- its end on the wall clock
    batch_id UBIGINT NOT NULL
);
