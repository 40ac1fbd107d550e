"""What an engine is started with: frozen values, checked once. Read by every module here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-family decoder; the defaults are a tiny one for seeded random weights.

    `dtype` is a torch dtype's name, or "auto": bfloat16 on CUDA, float32 elsewhere. `eos_token_id`
    ends only those requests that don't ignore it.
    """

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 160
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    eos_token_id: int = 0
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError("hidden_size must be an even multiple of num_heads: RoPE turns pairs")
        if self.num_heads % self.num_kv_heads:
            raise ValueError("num_heads must be a multiple of num_kv_heads")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class EngineConfig:
    """Everything that decides what the engine does; units are in the names.

    The default pool is 100,000 KV tokens in blocks of 16. `watermark_blocks` are kept out of
    admissions, so that running requests have room to grow before anyone must be preempted.
    """

    block_size: int = 16
    num_blocks: int = 6250
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    watermark_blocks: int = 0
    policy: str = "chunked"
    runner: Literal["torch", "cost"] = "torch"
    seed: int = 0
    device: str = "auto"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.watermark_blocks < self.num_blocks:
            raise ValueError("watermark_blocks must be at least 0 and below num_blocks")
