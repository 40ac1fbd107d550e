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

    `reservation` is what the orca policy sets aside per request: prompt + max_tokens, or
    max_model_len. While requests run, `admit_delay` is how many iterations pass between two with
    admissions, `admit_min_free` how many slots must be free before any is filled: both trade the
    waiting of new requests for fewer interruptions of running ones.
    """

    block_size: int = 16
    num_blocks: int = 6250
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    enable_prefix_caching: bool = True
    watermark_blocks: int = 0
    policy: str = "chunked"
    reservation: Literal["max_tokens", "max_model_len"] = "max_tokens"
    admit_delay: int = 0
    admit_min_free: int = 0
    runner: Literal["torch", "cost"] = "torch"
    seed: int = 0
    device: str = "auto"
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, below in (
            ("watermark_blocks", self.num_blocks),
            ("admit_min_free", self.max_num_seqs + 1),
            ("admit_delay", 2**31),
        ):
            if not 0 <= getattr(self, name) < below:
                raise ValueError(f"{name} must be at least 0 and below {below}")
        room = (self.num_blocks - self.watermark_blocks) * self.block_size
        if self._reserves_the_longest and self.max_model_len > room:
            raise ValueError(
                f"{self.policy} reserves max_model_len {self.max_model_len} for each request: "
                f"the KV pool has room for {room}"
            )

    @property
    def _reserves_the_longest(self) -> bool:
        longest = self.policy == "orca" and self.reservation == "max_model_len"
        return self.policy == "static" or longest
