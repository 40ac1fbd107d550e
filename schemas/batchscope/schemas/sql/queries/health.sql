-- What went wrong with the records: losses, laws that failed, and what adapters said about themselves?
-- param: from_ns BIGINT = 0
-- param: to_ns BIGINT = 9223372036854775807
-- Laws have no time of their own: they count since their ring began.
SELECT 'loss' AS kind, ring_id, unix_ns, NULL AS subject, records AS count,
       records || ' records lost, iterations: ' || coalesce(iterations::VARCHAR, 'unknown') AS text
FROM losses WHERE unix_ns IS NULL OR unix_ns BETWEEN $from_ns AND $to_ns
UNION ALL
SELECT 'notice', ring_id, unix_ns, coalesce(kind, 'unknown') || coalesce(' ' || seam, ''), count, text
FROM notices WHERE unix_ns BETWEEN $from_ns AND $to_ns
UNION ALL
SELECT 'audit', ring_id, NULL, law, violations, coalesce(example, 'no example')
FROM audit WHERE violations > 0
ORDER BY unix_ns NULLS FIRST, ring_id, kind, subject
