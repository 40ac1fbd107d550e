"""What the bundled engine's model must compute, written down again in the plainest way.

Tests and bench/gpu.py compare with these; nothing here is shared with the engine but the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention, silu

from batchscope.engine.config import ModelConfig
from batchscope.engine.model import Llama


def dense_logits(
    model: Llama, config: ModelConfig, tokens: list[int], dtype: torch.dtype
) -> Tensor:
    """Last logits [vocab] of the whole sequence at once in `dtype`, on the model's device: no
    cache, no pages, no batch, complex RoPE. For a plain Llama: no biases, no stretched RoPE.
    """
    weights: dict[str, Tensor] = dict(model.state_dict())
    device = weights["norm.weight"].device
    length, size = len(tokens), config.head_dim
    powers = -torch.arange(size // 2, dtype=torch.float64, device=device) / (size // 2)
    places = torch.arange(length, dtype=torch.float64, device=device)
    angles = places[:, None] * config.rope_theta**powers
    turns = torch.polar(torch.ones_like(angles), angles)
    mask = torch.full((length, length), -torch.inf, dtype=dtype, device=device).triu(1)

    def weight(name: str) -> Tensor:
        return weights[f"{name}.weight"].to(dtype)

    def norm(x: Tensor, name: str) -> Tensor:
        root: Tensor = (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
        return weight(name) * x / root

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(*x.double().chunk(2, -1)) * turns[:, None]
        return torch.cat((pairs.real, pairs.imag), -1).to(dtype)

    def attended(x: Tensor, own: str) -> Tensor:
        q, k, v = ((x @ weight(f"{own}.{part}_proj").T).view(length, -1, size) for part in "qkv")
        groups = config.num_heads // config.num_kv_heads
        k, v = (part.repeat_interleave(groups, 1) for part in (turned(k), v))
        scores = torch.einsum("qhd,khd->hqk", turned(q), k) / size**0.5 + mask
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        return mixed @ weight(f"{own}.o_proj").T

    x = weights["embed_tokens.weight"][tokens].to(dtype)
    for layer in range(config.num_layers):
        own = f"layers.{layer}"
        x = x + attended(norm(x, f"{own}.input_layernorm"), f"{own}.self_attn")
        h = norm(x, f"{own}.post_attention_layernorm")
        gate, up = (h @ weight(f"{own}.mlp.{part}_proj").T for part in ("gate", "up"))
        x = x + (silu(gate) * up) @ weight(f"{own}.mlp.down_proj").T
    head = "embed_tokens" if config.tie_embeddings else "lm_head"
    return norm(x[-1], "norm") @ weight(head).T


def listed_attention(q: Tensor, keys: Tensor, values: Tensor, mask: BlockMask) -> Tensor:
    """What FlexAttention computes for q [B, heads, 1, D] from the pages that `mask` lists, row by
    row. Pages that aren't listed are not looked at, as in its compiled kernels; uncompiled it looks
    at the whole pool.
    """
    return torch.cat([_row(q, keys, values, mask, row=row) for row in range(len(q))])


def _row(q: Tensor, keys: Tensor, values: Tensor, mask: BlockMask, *, row: int) -> Tensor:
    block = mask.BLOCK_SIZE[1]
    listed = mask.kv_indices[row, 0, 0, : int(mask.kv_num_blocks[row, 0, 0])].long()
    inside = torch.arange(block, device=q.device)
    slots = (listed[:, None] * block + inside).flatten()
    zero = torch.zeros((), dtype=torch.long, device=q.device)
    kept = slots[mask.mask_mod(zero + row, zero, zero, slots)]
    return scaled_dot_product_attention(
        q[row : row + 1], keys[:, :, kept], values[:, :, kept], enable_gqa=True
    )
