-- The rings of one engine, of one of its ranks or of all of them (rank NULL).
-- A macro, so that every question means the same by "this engine". Front ends have no iterations.
CREATE OR REPLACE MACRO rings_of(name, rank) AS TABLE
SELECT ring_id, attached_unix_ns, state FROM engines
WHERE engine = name AND role <> 'frontend' AND (CAST(rank AS UINTEGER) IS NULL OR dp_rank = CAST(rank AS UINTEGER));
