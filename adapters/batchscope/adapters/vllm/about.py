"""HELLO of a vLLM scheduler: version, model, rank, its effective settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchscope.adapters.vllm.shape import Shape
from batchscope.schemas.reasons import Role

PARTS = (
    "model_config",
    "cache_config",
    "scheduler_config",
    "parallel_config",
    "speculative_config",
    "lora_config",
    "kv_transfer_config",
    "structured_outputs_config",
    "compilation_config",
    "device_config",
)
ROLES = {"kv_producer": Role.PREFILL.value, "kv_consumer": Role.DECODE.value}
MOST_ITEMS = 64


def hello(scheduler: Any, shape: Shape) -> dict[str, Any]:
    """Keys of HELLO that vLLM knows."""
    vllm_config = getattr(scheduler, "vllm_config", None)
    return {
        "version": shape.version,
        "model_name": model_name(scheduler),
        "role": role(vllm_config),
        "dp_rank": rank(vllm_config),
        "config": config(vllm_config or scheduler),
        "block_tokens": shape.block_tokens,
        **kv_bytes(scheduler),
    }


def model_name(scheduler: Any) -> str:
    """The first name that the model is served under."""
    model = getattr(getattr(scheduler, "vllm_config", scheduler), "model_config", None)
    served = getattr(model, "served_model_name", None)
    first = served[0] if isinstance(served, (list, tuple)) and served else served
    return str(first or getattr(model, "model", "unknown"))


def role(vllm_config: Any) -> str:
    """By the KV transfer that it was started with."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    return ROLES.get(getattr(transfer, "kv_role", None) or "", Role.BOTH.value)


def rank(vllm_config: Any) -> int:
    """Data-parallel rank of this scheduler. Ranks without experts in common think they are alone,
    rank 0 of 1: only their index tells them apart, where there is one.
    """
    parallel = getattr(vllm_config, "parallel_config", None)
    alone = getattr(parallel, "data_parallel_rank", 0)
    return int(getattr(parallel, "data_parallel_index", alone) or 0)


def config(vllm_config: Any) -> dict[str, Any]:
    """Settings by part; only plain values: objects would print addresses."""
    found = ((part, getattr(vllm_config, part, None)) for part in PARTS)
    return {part: plain(vars(of)) for part, of in found if hasattr(of, "__dict__")}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Public fields with plain values, lists and mappings of such one level deep."""
    public = {str(k): v for k, v in values.items() if not str(k).startswith("_")}
    return {k: _reduced(v) for k, v in public.items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return len(value) <= MOST_ITEMS and all(map(_is_scalar, value.values()))
    if isinstance(value, (list, tuple)):
        return len(value) <= MOST_ITEMS and all(map(_is_scalar, value))
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _reduced(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    return list(value) if isinstance(value, (list, tuple)) else value


def kv_bytes(scheduler: Any) -> dict[str, int]:
    """KV bytes of one token on one rank, where all layers keep the same for every token."""
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", None)
    if not groups or len(groups) != 1:
        return {}
    (group,) = groups
    page = getattr(group.kv_cache_spec, "page_size_bytes", 0)
    per_token = int(page) * len(group.layer_names) // int(group.kv_cache_spec.block_size)
    return {"kv_bytes_per_token": per_token} if page else {}
