-- Finished and live requests.
CREATE OR REPLACE VIEW all_requests AS
SELECT * FROM requests UNION ALL BY NAME SELECT * FROM requests_open;
