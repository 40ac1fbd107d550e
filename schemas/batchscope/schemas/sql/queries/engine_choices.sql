-- Which engines are there, are they alive, and when did each last complete an iteration?
-- One row per engine and data-parallel rank; the newest of its rings speaks for it.
WITH newest AS (
    SELECT * FROM engines WHERE role <> 'frontend'
    QUALIFY row_number() OVER (PARTITION BY engine, dp_rank ORDER BY attached_unix_ns DESC, ring_id) = 1
), seen AS (
    SELECT ring_id, min(unix_ns) AS first_unix_ns, max(unix_ns) AS last_unix_ns
    FROM all_iterations WHERE completed_at_ns IS NOT NULL GROUP BY ring_id
), lives AS (
    SELECT engine, dp_rank, count(*) AS rings, min(attached_unix_ns) AS first_attached_unix_ns,
           min(first_unix_ns) AS first_iteration_unix_ns, max(last_unix_ns) AS last_iteration_unix_ns
    FROM engines LEFT JOIN seen USING (ring_id) WHERE role <> 'frontend' GROUP BY engine, dp_rank
)
SELECT newest.engine, newest.dp_rank, newest.kind, newest.version, newest.model_name, newest.role,
       newest.state, newest.attached_unix_ns, newest.ended_unix_ns, configs.config,
       lives.rings, lives.first_attached_unix_ns, lives.first_iteration_unix_ns,
       lives.last_iteration_unix_ns, epoch_ns(now()) AS server_unix_ns
FROM newest
JOIN lives ON lives.engine = newest.engine AND lives.dp_rank IS NOT DISTINCT FROM newest.dp_rank
LEFT JOIN (SELECT config_hash, any_value(config) AS config FROM configs GROUP BY config_hash) AS configs
    ON configs.config_hash = newest.config_hash
ORDER BY newest.state = 'live' DESC, newest.engine, newest.dp_rank
