-- One row per completed iteration; what is still in flight is in iterations_open (same columns).
CREATE TABLE IF NOT EXISTS iterations (
    ring_id UBIGINT NOT NULL,
    iteration_id UBIGINT NOT NULL,   -- in schedule order, +1 per decision
    completion_index UBIGINT,        -- k: in completion order, the axis of gaps; NULL in flight
    unix_ns BIGINT NOT NULL,         -- completion (in flight: decision) on the wall clock
    scheduled_at_ns BIGINT NOT NULL, -- d_k: schedule() returned, engine's monotonic clock
    completed_at_ns BIGINT,          -- c_k: output arrived; NULL in flight
    schedule_ns BIGINT NOT NULL,     -- in the scheduler's call
    interval_ns BIGINT,              -- host + exec; NULL for the first of a ring, after a loss, in flight
    host_ns BIGINT,                  -- part before dispatch that nothing ran; its schedule part = min(schedule_ns, host_ns)
    exec_ns BIGINT,                  -- part that this batch ran
    idle_ns BIGINT,                  -- part of c_k - c_(k-1) with no live request, outside the interval
    forward_ns BIGINT,               -- launch to tokens ready, where the engine tells
    phase VARCHAR NOT NULL,          -- prefill, decode, mixed, empty
    budget_tokens UINTEGER,          -- NULL: the policy has none
    prefill_tokens UINTEGER NOT NULL, -- input tokens computed as prompt work, recompute included
    decode_tokens UINTEGER NOT NULL, -- tokens scheduled for decode members
    draft_tokens UINTEGER NOT NULL,  -- part of decode_tokens
    recomputed_tokens UINTEGER,      -- part of prefill_tokens that re-admissions caused
    output_tokens UINTEGER,          -- tokens emitted; NULL in flight or members unknown
    prefill_members UINTEGER NOT NULL, -- requests
    decode_members UINTEGER NOT NULL, -- requests
    decode_gap_members UINTEGER,     -- tokens whose gap is exactly this interval; other gaps are rows of gaps
    decode_context_tokens UBIGINT,   -- sum of KV tokens that the decode members attend
    prefill_context_product UBIGINT, -- sum over prefill members of tokens x context before
    padded_tokens UINTEGER,          -- batch size as launched, where told
    graph_mode VARCHAR,              -- eager, piecewise, full
    running UINTEGER NOT NULL,       -- requests running after the decision
    waiting UINTEGER NOT NULL,       -- requests waiting after the decision
    admission_stop VARCHAR,          -- deferral reason where the scan stopped; NULL: queue emptied
    head_serial UINTEGER,            -- request where the scan stopped
    kv_total_blocks UINTEGER,
    kv_used_blocks UINTEGER,
    kv_evictable_blocks UINTEGER,    -- cached and unreferenced; free = total - used - evictable
    kv_waste_tokens UBIGINT,         -- token slots of the last, partly filled block of each request, summed; a reservation ahead is not in it
    kv_context_tokens UBIGINT,       -- tokens held, summed over requests
    observer_ns BIGINT,              -- our own time on the engine's thread for this iteration
    dummy BOOLEAN NOT NULL,          -- a step without requests run for other ranks' sake
    batch_id UBIGINT NOT NULL        -- commit that wrote this row
);
