"""What an engine is started with: frozen values, checked once. Read by every module here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class RopeScaling:
    """How a model trained on `original_positions` was stretched: "linear" divides every frequency
    by `factor`, "llama3" only the low ones, with a ramp between `low_freq` and `high_freq` turns
    per original length.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-family decoder; the defaults are a tiny one for seeded random weights.

    `dtype` is a torch dtype's name, or "auto": bfloat16 on CUDA, float32 elsewhere.
    `eos_token_ids` end only those requests that don't ignore them. `head_size` None: hidden_size
    over num_heads. Biases and `qk_norm` (RMS norm of each head before it is turned) tell the
    families apart: Llama has none, Qwen2 `qkv_bias`, Qwen3 `qk_norm`.
    """

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 160
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int | None = None
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = (0,)
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ValueError("hidden_size must be a multiple of num_heads")
        if self.head_dim % 2:
            raise ValueError(f"heads must be of even width, not {self.head_dim}: RoPE turns pairs")
        if self.num_heads % self.num_kv_heads:
            raise ValueError("num_heads must be a multiple of num_kv_heads")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_size or self.hidden_size // self.num_heads


@dataclass(frozen=True)
class EngineConfig:
    """Everything that decides what the engine does; units are in the names.

    The default pool is 100,000 KV tokens in blocks of 16. `watermark_blocks` are kept out of
    admissions, so that running requests have room to grow before anyone must be preempted.

    `reservation` is what the orca policy sets aside per request: prompt + max_tokens, or
    max_model_len. While requests run, `admit_delay` is how many iterations pass between two with
    admissions, `admit_min_free` how many slots must be free before any is filled: both trade the
    waiting of new requests for fewer interruptions of running ones.

    `role` is the engine's part of a split: a prefill engine keeps the pages of done prompts until a
    decode engine takes them, and admits no more while these are above `unaccepted_ratio` of its
    pool; a decode engine takes no more while what it took and can't run yet is above
    `backlog_ratio` of its own.

    `attention` says how decodes read their pages: copied together first ("gather"), or in place by
    torch's FlexAttention ("flex", which wants pages of 64 or 128 tokens to be fast); "auto" is flex
    on CUDA, but for float64.

    `weights` is a folder with safetensors for `model` (checkpoint.model_config reads their shape);
    None: random ones from `seed`.
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
    role: Literal["both", "prefill", "decode"] = "both"
    unaccepted_ratio: float = 0.5
    backlog_ratio: float = 0.1
    seed: int = 0
    device: str = "auto"
    attention: Literal["auto", "gather", "flex"] = "auto"
    weights: str | None = None
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
        for name in ("unaccepted_ratio", "backlog_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1")
        if self.policy == "paged" and self.max_num_seqs > self.prefill_budget:
            raise ValueError(f"max_num_seqs must be at most {self.prefill_budget}, one token each")
        room = (self.num_blocks - self.watermark_blocks) * self.block_size
        if self._reserves_the_longest and self.max_model_len > room:
            raise ValueError(
                f"{self.policy} reserves max_model_len {self.max_model_len} for each request: "
                f"the KV pool has room for {room}"
            )

    @property
    def prefill_budget(self) -> int:
        """Tokens of a batch where prompts are never cut: any request's prompt fits."""
        return max(self.max_num_batched_tokens, self.max_model_len)

    @property
    def unaccepted_blocks(self) -> int:
        """Blocks that may wait to be taken before a prefill engine admits no more."""
        return int(self.unaccepted_ratio * self.num_blocks)

    @property
    def backlog_blocks(self) -> float:
        """Blocks of requests without a slot from which on a decode engine takes no more."""
        return self.backlog_ratio * self.num_blocks

    @property
    def _reserves_the_longest(self) -> bool:
        longest = self.policy == "orca" and self.reservation == "max_model_len"
        return self.policy == "static" or longest
