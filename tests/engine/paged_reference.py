"""What FlexAttention computes from a list of pages, row by row in plain torch.

Pages that a row doesn't list are not looked at, as in the compiled kernels: the uncompiled
FlexAttention would look at the whole pool.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention


def paged_reference(q: Tensor, keys: Tensor, values: Tensor, mask: BlockMask) -> Tensor:
    """[B, heads, 1, D], one row after the other."""
    return torch.cat([_row(q, keys, values, mask, row=row) for row in range(len(q))])


def _row(q: Tensor, keys: Tensor, values: Tensor, mask: BlockMask, *, row: int) -> Tensor:
    block = mask.BLOCK_SIZE[1]
    listed = mask.kv_indices[row, 0, 0, : int(mask.kv_num_blocks[row, 0, 0])]
    slots = (listed.long()[:, None] * block + torch.arange(block)).flatten()
    zero = torch.tensor(0)
    seen = mask.mask_mod(torch.tensor(row), zero, zero, slots)
    kept = slots[seen]
    return scaled_dot_product_attention(
        q[row : row + 1], keys[:, :, kept], values[:, :, kept], enable_gqa=True
    )
