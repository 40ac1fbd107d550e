-- Which SLO are requests judged by?
-- The newest; no row where none was ever set.
SELECT name, version, targets, since_unix_ns FROM slo ORDER BY since_unix_ns DESC, version DESC LIMIT 1
