-- Points in time worth a line on every chart: attach, restart, deploys that people post.
CREATE TABLE IF NOT EXISTS marks (
    unix_ns BIGINT NOT NULL,
    kind VARCHAR NOT NULL,           -- attach, closed, dead, slo, user
    engine VARCHAR,                  -- NULL: all
    text VARCHAR NOT NULL,
    batch_id UBIGINT NOT NULL
);
