-- Requests that have left their front end and those that are there.
CREATE OR REPLACE VIEW all_deliveries AS
SELECT * FROM deliveries UNION ALL BY NAME SELECT * FROM deliveries_open;
