-- KV hops between engines.
CREATE TABLE IF NOT EXISTS transfers (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER,
    start_ns BIGINT NOT NULL, end_ns BIGINT NOT NULL, -- engine's monotonic clock
    unix_ns BIGINT NOT NULL,         -- its end
    handshake_ns BIGINT, wait_ns BIGINT, -- parts, where told
    bytes UBIGINT, blocks UINTEGER,
    peer VARCHAR,
    direction VARCHAR,               -- in or out
    failed BOOLEAN NOT NULL,
    batch_id UBIGINT NOT NULL
);
