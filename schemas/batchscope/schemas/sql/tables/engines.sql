-- One row per ring: one life of one engine process under observation.
CREATE TABLE IF NOT EXISTS engines (
    ring_id UBIGINT NOT NULL,        -- first 8 bytes of the ring's uuid; joins every other table
    ring_uuid VARCHAR NOT NULL,      -- the whole uuid, hex
    engine VARCHAR NOT NULL,         -- stable engine key (no pid): the `engine` label
    kind VARCHAR NOT NULL,           -- mini, vllm, sglang, ...
    version VARCHAR,                 -- of the engine
    model_name VARCHAR,              -- as the engine serves it
    role VARCHAR NOT NULL,           -- both, prefill, decode, frontend
    dp_rank UINTEGER,                -- data-parallel rank
    config_hash VARCHAR,             -- joins configs
    block_tokens UINTEGER,           -- tokens of one KV block
    param_bytes UBIGINT,             -- bytes of the weights
    kv_bytes_per_token UBIGINT,      -- bytes of KV per token over all layers
    provides VARCHAR NOT NULL,       -- JSON: field -> exact, estimated, absent
    adapter_version VARCHAR NOT NULL, -- of batchscope in the engine
    attached_unix_ns BIGINT NOT NULL, -- when the ring began, wall clock
    ended_unix_ns BIGINT,            -- when it was found closed or dead; NULL while alive
    state VARCHAR NOT NULL,          -- live, closed (said goodbye), dead (lock gone without goodbye)
    batch_id UBIGINT NOT NULL        -- commit that last wrote this row
);
