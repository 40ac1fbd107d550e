-- One row per client run: a replay that was measured at its client and handed in afterwards.
CREATE TABLE IF NOT EXISTS client_runs (
    run VARCHAR NOT NULL,            -- its id; request ids begin with it
    name VARCHAR,                    -- what it was called
    target VARCHAR NOT NULL,         -- whom it asked, without credentials
    began_unix_ns BIGINT NOT NULL,   -- start of the trace on the client's wall clock
    unix_ns BIGINT NOT NULL,         -- its last end
    warm_up_ns BIGINT NOT NULL,      -- left out of the figures, from the start
    requests UBIGINT NOT NULL,       -- of the trace that came due
    most_under_way UBIGINT NOT NULL, -- at once, as the client saw it
    under_way_cap UBIGINT NOT NULL,  -- beyond it requests were not sent
    interrupted BOOLEAN NOT NULL,    -- ended before the trace did
    slo VARCHAR,                     -- targets that its requests were judged by
    traffic VARCHAR NOT NULL,        -- JSON: where the trace comes from and what was done to it
    batch_id UBIGINT NOT NULL
);
