-- SLOs as they were in force.
CREATE TABLE IF NOT EXISTS slo (
    name VARCHAR NOT NULL,
    version UINTEGER NOT NULL,
    targets VARCHAR NOT NULL,        -- as written: ttft<=2s,tbt_p99<=200ms
    since_unix_ns BIGINT NOT NULL,
    batch_id UBIGINT NOT NULL
);
