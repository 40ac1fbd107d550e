-- Laws that can fail, as counted so far: one row per ring and law, rewritten at each commit.
CREATE TABLE IF NOT EXISTS audit (
    ring_id UBIGINT NOT NULL,
    law VARCHAR NOT NULL,            -- name of the law
    checks UBIGINT NOT NULL,         -- how often it was put to the test
    violations UBIGINT NOT NULL,     -- how often it failed
    example VARCHAR,                 -- the first failure in words
    batch_id UBIGINT NOT NULL
);
