-- What adapters said about themselves.
CREATE TABLE IF NOT EXISTS notices (
    ring_id UBIGINT NOT NULL,
    at_ns BIGINT NOT NULL,
    unix_ns BIGINT NOT NULL,
    kind VARCHAR,                    -- fault, missing_seam, over_budget, detached, dropped, config, info
    seam VARCHAR,                    -- hooked function
    count UINTEGER NOT NULL,         -- how often so far
    text VARCHAR NOT NULL,
    batch_id UBIGINT NOT NULL
);
