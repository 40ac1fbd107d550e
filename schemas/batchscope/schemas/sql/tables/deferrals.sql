-- Requests left out of a scheduling decision: one row per decision, reason and position that occurred.
CREATE TABLE IF NOT EXISTS deferrals (
    ring_id UBIGINT NOT NULL,
    iteration_id UBIGINT NOT NULL,   -- the decision
    unix_ns BIGINT NOT NULL,         -- decision on the wall clock
    reason VARCHAR NOT NULL,         -- root cause
    position VARCHAR NOT NULL,       -- head, behind, skipped, global
    requests UINTEGER NOT NULL,      -- how many
    batch_id UBIGINT NOT NULL
);
