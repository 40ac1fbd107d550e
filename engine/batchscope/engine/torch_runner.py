"""The runner with a real model: packs a batch, runs it on CPU or CUDA, samples greedily."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from batchscope.engine.batch import Batch, Member
from batchscope.engine.config import EngineConfig
from batchscope.engine.model import Llama, rope_table, seed_weights
from batchscope.engine.packing import pack, row_order
from batchscope.engine.runner import samples
from batchscope.engine.weights import load_weights


def pick_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA when present, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called `name`; "auto" is bfloat16 on CUDA, float32 on the CPU.

    Raises ValueError for a name that is no floating dtype of torch.
    """
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"{name} is not a floating point dtype")
    return dtype


class TorchRunner:
    """A model, of real or of seeded random weights, and the KV cache that block tables point into.

    The cache is [layers, 2, num_blocks * block_size, kv_heads, head_dim] and zeroed, for padded
    slots are read (and masked) before anything was written to them.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.device = pick_device(config.device)
        dtype = pick_dtype(config.model.dtype, self.device)
        with torch.device("meta"):
            model = Llama(config.model).to(dtype)
        self.model = model.to_empty(device=self.device).eval()
        if config.weights is None:
            seed_weights(self.model, seed=config.seed)
        else:
            load_weights(self.model, Path(config.weights))
        self.rope = rope_table(config.model, config.max_model_len).to(self.device, dtype)
        self.block_size = config.block_size
        slots = (config.num_blocks * config.block_size, config.model.num_kv_heads)
        shape = (config.model.num_layers, 2, *slots, config.model.head_dim)
        self.cache = torch.zeros(shape, dtype=dtype, device=self.device)

    def run(self, batch: Batch) -> dict[str, int]:
        """Compute the batch and pick each sampling member's likeliest token."""
        members = row_order(batch)
        picks = self.logits(members).argmax(dim=-1).tolist()
        sampling = (member.seq.request_id for member in members if samples(member))
        return dict(zip(sampling, picks, strict=True))

    @torch.inference_mode()
    def logits(self, members: list[Member]) -> Tensor:
        """Logits [S, vocab] of the S members, in row_order, that sample; their KV is written."""
        inputs = pack(members, block_size=self.block_size, device=self.device)
        out: Tensor = self.model(inputs, self.rope, self.cache)
        return out
