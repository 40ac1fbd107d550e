-- Spans in which a waiting request was passed over; written when they end.
CREATE TABLE IF NOT EXISTS blocked (
    ring_id UBIGINT NOT NULL,
    serial UINTEGER NOT NULL,
    reason VARCHAR,
    from_ns BIGINT NOT NULL,         -- engine's monotonic clock
    to_ns BIGINT NOT NULL,
    unix_ns BIGINT NOT NULL,         -- its end
    batch_id UBIGINT NOT NULL
);
