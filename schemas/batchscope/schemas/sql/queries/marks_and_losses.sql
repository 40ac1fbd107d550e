-- What happened in a range that a chart must show: deploys, restarts, and what was not seen?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- A loss reaches from the last record before it to the first completion after it (until_unix_ns NULL:
-- none yet). marks have no until_unix_ns. iterations NULL: how many are lost can't be known.
WITH rings AS (FROM rings_of($engine, $dp_rank)), lost AS (
    SELECT losses.unix_ns, 'loss' AS kind, losses.records, losses.iterations,
           (SELECT min(later.unix_ns) FROM all_iterations AS later
            WHERE later.ring_id = losses.ring_id AND later.unix_ns > losses.unix_ns) AS until_unix_ns
    FROM losses WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns IS NOT NULL
)
SELECT unix_ns, until_unix_ns, kind, NULL AS text, records, iterations FROM lost
WHERE unix_ns < $to_ns AND (until_unix_ns IS NULL OR until_unix_ns >= $from_ns)
UNION ALL
SELECT unix_ns, NULL, kind, text, NULL, NULL FROM marks
WHERE (engine IS NULL OR engine = $engine) AND unix_ns >= $from_ns AND unix_ns < $to_ns
ORDER BY unix_ns, kind LIMIT 500
