-- Member steps of one ring's iterations first..last (inclusive), expanded from runs.
-- Bound the range: it makes one row per request and iteration. A macro, since a view can't take the range.
CREATE OR REPLACE MACRO members(ring, first, last) AS TABLE
WITH step AS (
    SELECT *, unnest(generate_series(
        greatest(0, ceil((first::BIGINT - first_iteration::BIGINT) / stride))::BIGINT,
        least(n_iterations::BIGINT - 1, floor((last::BIGINT - first_iteration::BIGINT) / stride)::BIGINT)
    )) AS i
    FROM all_runs
    WHERE ring_id = ring AND first_iteration <= last
      AND first_iteration + (n_iterations::BIGINT - 1) * stride >= first
)
SELECT
    ring_id, serial, first_iteration + i * stride AS iteration_id, phase, recompute,
    tokens_each AS tokens,
    coalesce(emitted_each, emitted[i + 1]) AS emitted,
    context_first + CASE
        WHEN phase = 'prefill' THEN i * tokens_each
        WHEN emitted_each IS NOT NULL THEN i * emitted_each
        ELSE coalesce(list_sum(emitted[1:i]), 0)::BIGINT
    END AS context_tokens
FROM step;
