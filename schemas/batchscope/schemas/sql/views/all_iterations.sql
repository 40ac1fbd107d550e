-- Completed iterations and those in flight.
CREATE OR REPLACE VIEW all_iterations AS
SELECT * FROM iterations UNION ALL BY NAME SELECT * FROM iterations_open;
