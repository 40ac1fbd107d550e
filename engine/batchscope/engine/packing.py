"""A batch of the scheduler as tensors: block tables become cache slots, members become rows.

Used by torch_runner alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sample: list[int] = []
    for member in members:
        places = range(member.start, member.start + member.tokens)
        table = member.seq.block_table
        ids += member.seq.tokens(places.start, places.stop)
        positions += places
        slots += [table[p // block_size] * block_size + p % block_size for p in places]
        if samples(member):
            sample.append(len(ids) - 1)
    flat = (torch.tensor(values, dtype=torch.long) for values in (ids, positions, slots, sample))
    ids_, positions_, slots_, sample_ = (values.to(device) for values in flat)
    groups = [_group(part, row, block_size, device) for row, part in _parts(members)]
    return Inputs(ids_, positions_, slots_, groups, sample_)


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
