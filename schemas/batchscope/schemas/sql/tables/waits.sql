-- What a waiting request waited for: one row per admission and root cause, written when it is admitted or leaves.
CREATE TABLE IF NOT EXISTS waits (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,
    admission UINTEGER NOT NULL,     -- 0 the first, n the n-th re-admission after preemption
    reason VARCHAR NOT NULL,         -- root cause of the decisions in between
    skipped BOOLEAN NOT NULL,        -- passed over while others were looked at
    decisions UINTEGER NOT NULL,     -- how many left it out for that reason
    wait_ns BIGINT NOT NULL,         -- time under those decisions; with in_step they sum to the wait
    unix_ns BIGINT NOT NULL,         -- the wait's end on the wall clock
    batch_id UBIGINT NOT NULL
);
