"""A batch of the scheduler as tensors: block tables become cache slots, members become rows.

Used by torch_runner alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from batchscope.engine.batch import Batch, Member
from batchscope.engine.model import Group, Inputs
from batchscope.engine.runner import samples


def row_order(batch: Batch) -> list[Member]:
    """The members as the rows are laid out: single tokens first, so that they form one group."""
    return sorted(batch.members, key=lambda member: member.tokens != 1)


def pack(members: Sequence[Member], *, block_size: int, device: torch.device) -> Inputs:
    """Rows for `members`, which are in row_order, on `device`."""
    tensor = partial(torch.tensor, dtype=torch.long, device=device)
    rows = [(member, place) for member in members for place in _places(member)]
    ends = accumulate(member.tokens for member in members)
    return Inputs(
        ids=tensor([id_ for m in members for id_ in m.seq.tokens(m.start, m.start + m.tokens)]),
        positions=tensor([place for _, place in rows]),
        slots=tensor([_slot(member, place, block_size) for member, place in rows]),
        groups=[_group(part, row, block_size, device) for row, part in _parts(members)],
        sample=tensor([end - 1 for m, end in zip(members, ends, strict=True) if samples(m)]),
    )


def _places(member: Member) -> range:
    return range(member.start, member.start + member.tokens)


def _slot(member: Member, place: int, block_size: int) -> int:
    return member.seq.block_table[place // block_size] * block_size + place % block_size


def _parts(members: Sequence[Member]) -> Iterator[tuple[int, Sequence[Member]]]:
    """Members that attention can take together, each part with its first row."""
    singles = sum(member.tokens == 1 for member in members)
    if singles:
        yield 0, members[:singles]
    row = singles
    for member in members[singles:]:
        yield row, [member]
        row += member.tokens


def _group(
    members: Sequence[Member], first_row: int, block_size: int, device: torch.device
) -> Group:
    """One group of members with equally many tokens; shorter contexts are padded with block 0."""
    queries = members[0].tokens
    length = max(member.start for member in members) + queries
    slots = _context_slots(members, length, block_size).to(device)
    starts = torch.tensor([member.start for member in members], device=device)
    places = starts[:, None] + torch.arange(queries, device=device)
    visible = torch.arange(length, device=device) <= places[..., None]
    rows = slice(first_row, first_row + len(members) * queries)
    return Group(rows, slots, visible.unsqueeze(1))


def _context_slots(members: Sequence[Member], length: int, block_size: int) -> Tensor:
    """Cache slots of positions 0..length - 1 of each member, [B, length]."""
    blocks = -(-length // block_size)
    tables = [(member.seq.block_table + [0] * blocks)[:blocks] for member in members]
    starts = torch.tensor(tables).unsqueeze(-1) * block_size
    return (starts + torch.arange(block_size)).flatten(1)[:, :length]
