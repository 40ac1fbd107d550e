"""The config.json of a local Hugging Face folder as a ModelConfig. No torch, no network.

Called by whoever starts an engine on real weights; weights.py reads the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchscope.engine.config import ModelConfig, RopeScaling


class CheckpointError(ValueError):
    """A folder that can't be served; the message says which file and why."""


FAMILIES: dict[str, dict[str, bool]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}
"""model_type -> what is always so in that family, whatever its config says."""


def model_config(folder: str | Path, *, dtype: str = "auto") -> ModelConfig:
    """Shape of the model in `folder`, to be computed in `dtype`. Raises CheckpointError."""
    path = Path(folder) / "config.json"
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as why:
        raise CheckpointError(f"{path}: {why}") from why
    try:
        return _shape(told, dtype)
    except KeyError as why:
        raise CheckpointError(f"{path}: {why} is missing") from why
    except ValueError as why:
        raise CheckpointError(f"{path}: {why}") from why


def _shape(told: Mapping[str, Any], dtype: str) -> ModelConfig:
    family = FAMILIES.get(told["model_type"])
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"model_type {told['model_type']!r} is not among {known}")
    if told.get("use_sliding_window") or told.get("hidden_act", "silu") != "silu":
        raise ValueError("sliding windows and activations other than silu are not supported")
    biased = bool(told.get("attention_bias", False))
    flags = {"qkv_bias": biased, "out_bias": biased, **family}
    return ModelConfig(
        vocab_size=told["vocab_size"],
        hidden_size=told["hidden_size"],
        intermediate_size=told["intermediate_size"],
        num_layers=told["num_hidden_layers"],
        num_heads=told["num_attention_heads"],
        num_kv_heads=told.get("num_key_value_heads") or told["num_attention_heads"],
        head_size=told.get("head_dim"),
        rope_theta=float(_rope(told).get("rope_theta", told.get("rope_theta", 10_000.0))),
        rope_scaling=_scaling(_rope(told)),
        rms_norm_eps=told["rms_norm_eps"],
        mlp_bias=bool(told.get("mlp_bias", False)),
        tie_embeddings=bool(told.get("tie_word_embeddings", False)),
        eos_token_ids=_several(told.get("eos_token_id")),
        dtype=dtype,
        **flags,
    )


def _rope(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Newer configs keep all of RoPE in one place, older ones only its scaling."""
    return told.get("rope_parameters") or told.get("rope_scaling") or {}


def _scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope["factor"])
    if kind != "llama3":
        raise ValueError(f"RoPE of type {kind!r} is not among default, linear, llama3")
    return RopeScaling(
        "llama3",
        rope["factor"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
        rope["original_max_position_embeddings"],
    )


def _several(ids: int | list[int] | None) -> tuple[int, ...]:
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
