-- What is the newest completed iteration of each live ring?
SELECT engine, dp_rank, ring_id, max(iteration_id) AS iteration_id, max(i.unix_ns) AS unix_ns
FROM all_iterations AS i JOIN engines USING (ring_id)
WHERE state = 'live' AND completed_at_ns IS NOT NULL
GROUP BY engine, dp_rank, ring_id
ORDER BY engine, dp_rank, ring_id
