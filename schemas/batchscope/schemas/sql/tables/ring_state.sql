-- How far each ring is read, and the fold's whole state there; written in the same transaction as the rows.
CREATE TABLE IF NOT EXISTS ring_state (
    ring_id UBIGINT NOT NULL,
    ring_uuid VARCHAR NOT NULL,
    seq UBIGINT NOT NULL,            -- next record expected
    byte_pos UBIGINT NOT NULL,       -- where it is expected in the file
    fold_version UINTEGER NOT NULL,
    blob BLOB NOT NULL,
    batch_id UBIGINT NOT NULL
);
