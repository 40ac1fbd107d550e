-- Finished and still open runs: live questions miss nothing.
CREATE OR REPLACE VIEW all_runs AS
SELECT * FROM runs UNION ALL BY NAME SELECT * FROM runs_open;
