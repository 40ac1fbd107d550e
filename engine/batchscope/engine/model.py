"""A Llama-family decoder over a paged KV cache, in plain torch.

One flat row per token of the batch, whatever requests the rows belong to; only attention looks at
the parts. Module names follow the checkpoints of that family. Used by torch_runner alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from batchscope.engine.attention import Part
from batchscope.engine.config import ModelConfig, RopeScaling


class Inputs(NamedTuple):
    """A batch of T tokens as the model takes it.

    `ids`, `positions`, `slots` [T]: token, place in its request, cache slot to write; `parts` cover
    all rows; `sample` [S]: the rows whose logits are wanted.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    parts: Sequence[Part]
    sample: Tensor


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """Cosines and sines for `length` positions, [2, length, head_dim] in float64.

    Su et al. 2021 (RoFormer), in the half-split layout of Llama checkpoints.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    speeds = stretched(config.rope_theta**-exponents, config.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()))


def stretched(speeds: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Radians per position of a model whose context was extended; unchanged without `scaling`.

    "llama3" is the rule of Llama 3.1: turns per original length below `low_freq` are slowed by
    `factor`, above `high_freq` kept, in between interpolated.
    """
    if scaling is None:
        return speeds
    if scaling.kind == "linear":
        return speeds / scaling.factor
    turns = scaling.original_positions * speeds / (2 * math.pi)
    kept = (turns - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return torch.lerp(speeds / scaling.factor, speeds, kept.clamp(0, 1))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the heads of x [T, heads, head_dim] by their positions' rope [2, T, head_dim]."""
    cos, sin = rope[0].unsqueeze(1), rope[1].unsqueeze(1)
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def attend(q: Tensor, cache: Tensor, parts: Sequence[Part]) -> Tensor:
    """Attention of q [T, heads, head_dim] over cache [2, slots, kv_heads, head_dim], as [T, -1]."""
    out = torch.empty_like(q)
    for part in parts:
        out[part.rows] = part.attend(q[part.rows], cache)
    return out.flatten(1)


class Attention(nn.Module):
    """Grouped-query attention that writes its own keys and values into the cache first."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        hidden, bias = config.hidden_size, config.qkv_bias
        width, kv_width = (n * self.head_dim for n in (config.num_heads, config.num_kv_heads))
        self.q_proj = nn.Linear(hidden, width, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_width, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, hidden, bias=config.out_bias)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
            for _ in "qk"
        )

    def forward(self, x: Tensor, rope: Tensor, cache: Tensor, inputs: Inputs) -> Tensor:
        """Map x [T, hidden] to [T, hidden]; cache [2, slots, kv_heads, head_dim] is written."""
        heads = (len(x), -1, self.head_dim)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)), rope)
        cache[0, inputs.slots] = rotate(self.k_norm(self.k_proj(x).view(heads)), rope)
        cache[1, inputs.slots] = self.v_proj(x).view(heads)
        out: Tensor = self.o_proj(attend(q, cache, inputs.parts))
        return out


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        narrow, wide, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = nn.Linear(narrow, wide, bias=bias)
        self.up_proj = nn.Linear(narrow, wide, bias=bias)
        self.down_proj = nn.Linear(wide, narrow, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [T, hidden] to [T, hidden]."""
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, rope: Tensor, cache: Tensor, inputs: Inputs) -> Tensor:
        """Map x [T, hidden] to [T, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), rope, cache, inputs)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    """Embedding, layers, final norm, output head (the embedding itself where tied); no state but
    the weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head: nn.Linear | None = None
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, inputs: Inputs, rope: Tensor, cache: Tensor) -> Tensor:
        """Logits [S, vocab] of the rows to sample.

        `rope` [2, positions, head_dim]; `cache` [layers, 2, slots, kv_heads, head_dim], written.
        """
        x = self.embed_tokens(inputs.ids)
        turned = rope[:, inputs.positions]
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, turned, layer_cache, inputs)
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return linear(self.norm(x[inputs.sample]), head.weight)


def seed_weights(model: Llama, *, seed: int) -> None:
    """Fill every matrix with normal noise of variance 1 / fan-in, norms (and biases) with ones.

    Equal on every device, for it is drawn on the CPU. At the customary deviation of 0.02 a tiny
    model repeats its input; at this scale attention decides the output.
    """
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data.fill_(1)
            continue
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data.copy_(noise * weight.shape[1] ** -0.5)
