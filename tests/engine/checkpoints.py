"""Small checkpoints with weights in closed form, as folders of config.json and safetensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 10_000.0},
    "llama3": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1_000_000.0},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a checkpoint with this config."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = (config[f"num_{n}_heads"] * size for n in ("attention", "key_value"))
    kind = config["model_type"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (96, hidden)}
    for layer in range(config["num_hidden_layers"]):
        own = f"model.layers.{layer}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            found[f"{own}self_attn.{name}_proj.weight"] = (rows, hidden)
            if kind == "qwen2":
                found[f"{own}self_attn.{name}_proj.bias"] = (rows,)
            if kind == "qwen3" and name != "v":
                found[f"{own}self_attn.{name}_norm.weight"] = (size,)
        found[own + "self_attn.o_proj.weight"] = (hidden, q)
        found[own + "mlp.gate_proj.weight"] = (wide, hidden)
        found[own + "mlp.up_proj.weight"] = (wide, hidden)
        found[own + "mlp.down_proj.weight"] = (hidden, wide)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{own}{norm}.weight"] = (hidden,)
    found["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (96, hidden)
    return found


def waves(config: dict[str, Any]) -> dict[str, Tensor]:
    """Every tensor as a sine of its place, no two alike; norms lie around 1."""
    made = {}
    for number, (name, shape) in enumerate(sorted(shapes(config).items())):
        places = torch.arange(math.prod(shape), dtype=torch.float64)
        wave = torch.sin(places * (1.3 + 0.01 * number) + number).view(shape)
        is_norm = "norm" in name
        made[name] = (1 + 0.3 * wave if is_norm else 0.3 * wave).float()
    return made


def write(folder: Path, family: str, *, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint of a family in two shards; the folder."""
    config = SHAPE | FAMILIES[family]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(waves(config).items())
    index = {}
    for number, part in enumerate((tensors[::2], tensors[1::2]), start=1):
        shard = folder / f"model-0000{number}-of-00002.safetensors"
        shard.write_bytes(packed({name: tensor.to(dtype) for name, tensor in part}))
        index.update(dict.fromkeys(dict(part), shard.name))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    return folder


def packed(tensors: dict[str, Tensor]) -> bytes:
    """The bytes of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": span,
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data
