-- A running request lost its place.
CREATE TABLE IF NOT EXISTS preemptions (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,
    iteration_id UBIGINT NOT NULL,   -- the decision that took its place (the next SCHEDULED)
    at_ns BIGINT NOT NULL,
    unix_ns BIGINT NOT NULL,
    lost_tokens UINTEGER NOT NULL,   -- computed KV given up
    mode VARCHAR,                    -- recompute or swap
    reason VARCHAR,                  -- root cause
    batch_id UBIGINT NOT NULL
);
