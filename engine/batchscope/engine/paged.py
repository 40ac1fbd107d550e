"""Decode rows that attend their pages where they lie, by torch's FlexAttention.

Everything that a step needs is in buffers of a fixed size and place, as a captured graph wants
them: the number of rows is padded, each step overwrites them by one copy. Used by torch_runner and
packing alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from batchscope.engine.attention import InPlace, Kernel
from batchscope.engine.batch import Member
from batchscope.engine.model import Inputs

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MOST_SIZES = 64
QUERY_BLOCK = 128
"""FlexAttention's own unit of queries; a decode row has one and is alone in its block."""


class Pages(NamedTuple):
    """The pool as decode rows see it: `num_blocks` of `block_size` tokens and one block more, the
    `scratch` that padding reads and writes. No request has more than `width` blocks.
    """

    block_size: int
    num_blocks: int
    width: int

    @property
    def scratch(self) -> int:
        """The block that belongs to nobody."""
        return self.num_blocks

    @property
    def slots(self) -> int:
        """Cache slots, the scratch block's included."""
        return (self.num_blocks + 1) * self.block_size


def padded_size(rows: int, *, most: int) -> int:
    """The next power of two, so that few sizes are compiled and captured, but at most `most`."""
    return min(1 << (rows - 1).bit_length(), most)


@cache
def flex_kernel() -> Kernel:
    """FlexAttention, compiled: uncompiled it would compute the whole pool densely."""
    import torch._dynamo.config as dynamo
    from torch.nn.attention.flex_attention import flex_attention

    # each padded size is a compilation of its own, and dynamo gives up at 8
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_SIZES)
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)

    def kernel(q: Tensor, keys: Tensor, values: Tensor, mask: BlockMask) -> Tensor:
        out: Tensor = compiled(q, keys, values, block_mask=mask, enable_gqa=True)
        return out

    return kernel


class DecodeRows:
    """`size` rows of one token each, padding included.

    `inputs` are what the model takes; fill() writes what a step is about, settle() derives the rest
    on the device and can be part of a captured graph.
    """

    def __init__(self, size: int, *, pages: Pages, device: torch.device, kernel: Kernel) -> None:
        self.size = size
        self._pages = pages
        self._told = torch.zeros(size * (3 + pages.width), dtype=torch.int32, device=device)
        rows, tables = torch.split(self._told, [3 * size, size * pages.width])
        self._new = tables.view(size, 1, 1, pages.width)
        ids, positions, self._new_slots = rows.view(3, size)
        slots = torch.zeros(size, dtype=torch.long, device=device)
        self._counts = torch.ones((size, 1, 1), dtype=torch.int32, device=device)
        # as many columns as the pool has blocks: FlexAttention on the CPU asks for that
        columns = (size, 1, 1, pages.num_blocks + 1)
        self._tables = torch.zeros(columns, dtype=torch.int32, device=device)
        every = torch.arange(size, device=device)
        part = InPlace(slice(0, size), self._mask(slots), kernel)
        self.inputs = Inputs(ids, positions, slots, [part], every)

    def fill(self, members: Sequence[Member]) -> None:
        """Write a step of at most `size` members with one token each; the host doesn't wait."""
        told = torch.frombuffer(told_rows(members, self.size, self._pages), dtype=torch.int32)
        if self._told.is_cuda:
            told = told.pin_memory()
        self._told.copy_(told, non_blocking=True)

    def settle(self) -> None:
        """Slots, page counts and page lists of what was written last."""
        self.inputs.slots.copy_(self._new_slots)
        blocks = self.inputs.positions // self._pages.block_size + 1
        self._counts.copy_(blocks.view(-1, 1, 1))
        self._tables[..., : self._pages.width].copy_(self._new)

    def _mask(self, slots: Tensor) -> BlockMask:
        """All listed pages are read; of the last one, that of the newest token, not its tail."""
        from torch.nn.attention.flex_attention import BlockMask

        block = self._pages.block_size

        def seen(row: Tensor, _head: Tensor, _query: Tensor, slot: Tensor) -> Tensor:
            return (slot <= slots[row]) | (slot // block != slots[row] // block)

        return BlockMask.from_kv_blocks(
            self._counts,
            self._tables,
            BLOCK_SIZE=(QUERY_BLOCK, block),
            mask_mod=seen,
            seq_lengths=(1, self._pages.slots),
            compute_q_blocks=False,
        )


def told_rows(members: Sequence[Member], size: int, pages: Pages) -> array[int]:
    """Tokens, positions and slots of `size` rows, then the `width` blocks of each; rows without a
    member are a first token in the scratch block.
    """
    told, block = array("i", bytes(4 * size * (3 + pages.width))), pages.block_size
    for row in range(len(members), size):
        told[2 * size + row] = pages.scratch * block
        told[3 * size + row * pages.width] = pages.scratch
    for row, (seq, start, _, _) in enumerate(members):
        table = seq.block_table
        told[row] = seq.tokens(start, start + 1)[0]
        told[size + row] = start
        told[2 * size + row] = table[start // block] * block + start % block
        at, blocks = 3 * size + row * pages.width, array("i", table[: pages.width])
        told[at : at + len(blocks)] = blocks
    return told
