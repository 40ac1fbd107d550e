-- Effective engine configurations, secrets dropped.
CREATE TABLE IF NOT EXISTS configs (
    config_hash VARCHAR NOT NULL,    -- of the canonical JSON
    config VARCHAR NOT NULL,         -- canonical JSON
    batch_id UBIGINT NOT NULL        -- commit that wrote this row
);
