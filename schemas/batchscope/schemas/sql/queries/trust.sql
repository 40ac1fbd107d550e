-- Can these figures be trusted: audit laws, losses, notices, and what observing costs?
-- param: engine VARCHAR
-- param: dp_rank UINTEGER = NULL
-- param: from_ns BIGINT
-- param: to_ns BIGINT
-- Audit, losses and notices since the engine attached; the observer's cost over the range.
-- Its front ends' are among them. Notices of information, of configuration and of a goodbye that was asked for are not counted.
WITH rings AS (
    SELECT ring_id FROM rings_of($engine, $dp_rank)
    UNION ALL SELECT ring_id FROM engines WHERE engine = $engine AND role = 'frontend'
), laws AS (
    SELECT sum(checks)::BIGINT AS checks, sum(violations)::BIGINT AS violations,
           any_value(law || ': ' || coalesce(example, 'no example')) FILTER (violations > 0) AS violated
    FROM audit WHERE ring_id IN (SELECT ring_id FROM rings)
), lost AS (
    SELECT coalesce(sum(records), 0)::BIGINT AS lost_records, count(*) AS losses,
           coalesce(sum(rejected), 0)::BIGINT AS rejected_records
    FROM losses WHERE ring_id IN (SELECT ring_id FROM rings)
), said AS (
    SELECT count(*) AS notices, max_by(text, unix_ns) AS last_notice
    FROM notices WHERE ring_id IN (SELECT ring_id FROM rings) AND kind IS DISTINCT FROM 'info'
      AND kind IS DISTINCT FROM 'config' AND NOT (kind IS NOT DISTINCT FROM 'detached' AND text = 'asked to leave')
), cost AS (
    SELECT quantile_disc(observer_ns, 0.5) AS observer_p50_ns,
           quantile_disc(observer_ns, 0.99) AS observer_p99_ns,
           sum(observer_ns) FILTER (interval_ns IS NOT NULL) / nullif(sum(interval_ns) FILTER (observer_ns IS NOT NULL), 0)
               AS observer_ratio
    FROM all_iterations
    WHERE ring_id IN (SELECT ring_id FROM rings) AND unix_ns >= $from_ns AND unix_ns < $to_ns
)
SELECT * FROM laws, lost, said, cost
