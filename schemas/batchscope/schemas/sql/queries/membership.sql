-- Which request was a member of which iterations of a short range?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- param: rows BIGINT = 60
-- Runs of at most `rows` requests, clipped to the range; in_range says how many requests it has.
-- Those that join, leave or prefill in the range come first: the others only go on decoding.
-- context_first is NULL in a run of unequal emissions that began earlier; finished is told only when the request ended before to_ns.
WITH rings AS (FROM rings_of($engine, $dp_rank)), extent AS (
    SELECT ring_id, min(iteration_id) AS lo, max(iteration_id) AS hi FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
    GROUP BY ring_id
), inside AS (
    SELECT runs.*, lo, hi,
           CASE WHEN first_iteration < lo THEN (lo - first_iteration + stride - 1) // stride ELSE 0 END AS skipped,
           least(n_iterations, CASE WHEN hi < first_iteration THEN 0 ELSE (hi - first_iteration) // stride + 1 END)
               AS upto
    FROM all_runs AS runs JOIN extent USING (ring_id)
    WHERE unix_ns >= $from_ns AND first_iteration <= hi
), clipped AS (
    SELECT * FROM inside WHERE upto > skipped
), ranked AS (
    SELECT ring_id, serial, count(*) OVER () AS in_range,
           bool_or(phase = 'prefill') OR min(first_iteration) > any_value(lo)
             OR max(first_iteration + skipped + (upto - skipped - 1) * stride) < any_value(hi) AS eventful
    FROM clipped GROUP BY ring_id, serial
), chosen AS (
    SELECT ring_id, serial, in_range FROM ranked ORDER BY eventful DESC, serial, ring_id LIMIT least(greatest($rows, 0), 5000)
)
SELECT clipped.ring_id, clipped.serial, requests.request_key, requests.prompt_tokens,
       requests.output_tokens, requests.arrived_unix_ns,
       CASE WHEN requests.finished_at_ns IS NOT NULL AND requests.unix_ns < $to_ns THEN requests.unix_ns END
           AS finished_unix_ns,
       CASE WHEN requests.unix_ns < $to_ns THEN requests.finish_reason END AS finish_reason,
       clipped.phase, clipped.recompute, clipped.tokens_each, clipped.emitted_each,
       (clipped.first_iteration + skipped * stride)::BIGINT AS first_iteration,
       (upto - skipped)::BIGINT AS n_iterations, clipped.stride,
       (clipped.context_first + skipped * CASE WHEN clipped.phase = 'prefill' THEN clipped.tokens_each
                                               ELSE clipped.emitted_each END)::BIGINT AS context_first,
       chosen.in_range
FROM clipped JOIN chosen USING (ring_id, serial)
LEFT JOIN all_requests AS requests USING (ring_id, serial)
ORDER BY clipped.ring_id, clipped.serial, clipped.first_iteration
