-- What a front end (API server) handed to the stream of each request that has left it; live ones are
-- in deliveries_open (same columns). Joins requests by request_key. Without a front end's ring: no row.
CREATE TABLE IF NOT EXISTS deliveries (
    ring_id UBIGINT NOT NULL,        -- the front end's ring, not the engine's
    serial UINTEGER NOT NULL,        -- numbered from 1 in that ring
    request_key VARCHAR,             -- the same as in requests; NULL: ids are not recorded
    external_key VARCHAR,            -- the same for the id that the client knows
    arrived_at_ns BIGINT,            -- at the front end, on its monotonic clock; NULL: before we attached
    first_at_ns BIGINT,              -- first hand-over of tokens; NULL: none, or not seen
    last_at_ns BIGINT,
    finished_at_ns BIGINT,           -- NULL while live
    arrived_unix_ns BIGINT,
    unix_ns BIGINT NOT NULL,         -- its end (live: the last record seen) on the wall clock
    finish_reason VARCHAR,           -- stop, length, abort, error, unknown; NULL while live
    delivered_tokens UINTEGER NOT NULL, -- handed to its stream
    deliveries UINTEGER NOT NULL,    -- hand-overs, of one or more tokens each
    ttft_ns BIGINT,                  -- arrival to first hand-over
    e2e_ns BIGINT,                   -- arrival to last hand-over
    tpot_ns BIGINT,                  -- (last - first) / (delivered_tokens - 1); NULL below 2 hand-overs
    gap_max_ns BIGINT,               -- longest gap between two hand-overs
    lag_first_ns BIGINT,             -- ready in the core to handed over, of the first; NULL: the core's clock is another machine's
    lag_mean_ns BIGINT,              -- over its hand-overs
    lag_max_ns BIGINT,
    broken BOOLEAN NOT NULL,         -- records about it were lost: figures that need them are NULL
    batch_id UBIGINT NOT NULL
);
