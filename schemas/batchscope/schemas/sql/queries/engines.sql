-- Which rings were ever followed, of which engines, and how did each end?
SELECT ring_id, ring_uuid, engine, kind, version, model_name, role, dp_rank, config_hash, block_tokens,
       param_bytes, kv_bytes_per_token, provides, adapter_version, attached_unix_ns, ended_unix_ns, state
FROM engines
ORDER BY attached_unix_ns, ring_id
