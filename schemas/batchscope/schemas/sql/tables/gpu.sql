-- Samples of each device.
CREATE TABLE IF NOT EXISTS gpu (
    device UINTEGER NOT NULL,        -- index
    uuid VARCHAR NOT NULL,
    unix_ns BIGINT NOT NULL,
    sm_ratio DOUBLE,                 -- share of time that any kernel ran, 0..1
    memory_busy_ratio DOUBLE,        -- share of time that memory was read or written
    memory_used_bytes UBIGINT, memory_total_bytes UBIGINT,
    power_mw UINTEGER,               -- milliwatts
    sm_clock_mhz UINTEGER,
    temperature_c UINTEGER,
    batch_id UBIGINT NOT NULL
);
