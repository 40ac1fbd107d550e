-- Records that were overwritten or did not validate before they could be read. Shown as a gap.
CREATE TABLE IF NOT EXISTS losses (
    ring_id UBIGINT NOT NULL,
    unix_ns BIGINT,                  -- last record before the loss, wall clock
    first_seq UBIGINT NOT NULL,      -- first lost record
    records UBIGINT NOT NULL,
    iterations UBIGINT,              -- decisions among them; NULL when it can't be known
    rejected UINTEGER NOT NULL,      -- places whose bytes did not validate
    batch_id UBIGINT NOT NULL
);
