-- Which client runs were handed in?
SELECT * EXCLUDE (batch_id) FROM client_runs ORDER BY began_unix_ns, run
