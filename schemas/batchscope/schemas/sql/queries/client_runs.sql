-- Which client runs were handed in?
-- Of one that was handed in again, the last word holds.
SELECT * EXCLUDE (batch_id) FROM (
    SELECT DISTINCT ON (run) * FROM client_runs ORDER BY run, batch_id DESC
) ORDER BY began_unix_ns, run
