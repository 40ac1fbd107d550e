"""A batch of the scheduler as tensors: block tables become cache slots, members become rows.

Used by torch_runner alone. All integers of a batch go to the device in one copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from batchscope.engine.attention import Gathered, Part
from batchscope.engine.batch import Batch, Member
from batchscope.engine.model import Inputs
from batchscope.engine.paged import DecodeRows
from batchscope.engine.runner import samples


def row_order(batch: Batch) -> list[Member]:
    """The members as the rows are laid out: single tokens first, so that they form one part."""
    return sorted(batch.members, key=lambda member: member.tokens != 1)


def singles(members: Sequence[Member]) -> int:
    """How many of `members`, in row_order, have one token."""
    return sum(member.tokens == 1 for member in members)


def staged(columns: Iterable[Sequence[int]], device: torch.device) -> list[Tensor]:
    """Each column as an int32 tensor on `device`, by one copy that the host doesn't wait for.

    Pinned memory comes from torch's cache of it, which knows when a copy has ended.
    """
    columns = list(columns)
    told = array("i", chain.from_iterable(columns))
    flat = torch.frombuffer(told, dtype=torch.int32) if told else torch.empty(0, dtype=torch.int32)
    if device.type == "cuda":
        flat = flat.pin_memory()
    lengths = [len(column) for column in columns]
    return list(torch.split(flat.to(device, non_blocking=True), lengths))


def pack(
    members: Sequence[Member],
    *,
    block_size: int,
    device: torch.device,
    decodes: DecodeRows | None = None,
) -> Inputs:
    """Rows for `members`, which are in row_order, on `device`.

    With `decodes`, which were filled with the single tokens, their rows come first, padding
    included, and only the rest is packed.
    """
    first = 0 if decodes is None else singles(members)
    rest, head = members[first:], 0 if decodes is None else decodes.size
    parts = list(_parts(rest))
    columns = [*_rows(rest, block_size), _sampling(members, shift=head - first)]
    tables = [_table(part, block_size) for _, part in parts]
    ids, positions, slots, sample, *lists = staged([*columns, *tables], device)
    packed = Inputs(
        ids,
        positions,
        slots.long(),
        [
            _gathered(part, row, positions, table, head=head, block_size=block_size)
            for (row, part), table in zip(parts, lists, strict=True)
        ],
        sample,
    )
    return packed if decodes is None else _joined(decodes, packed)


def _joined(decodes: DecodeRows, rest: Inputs) -> Inputs:
    ahead = decodes.inputs
    return Inputs(
        torch.cat((ahead.ids, rest.ids)),
        torch.cat((ahead.positions, rest.positions)),
        torch.cat((ahead.slots, rest.slots)),
        [*ahead.parts, *rest.parts],
        rest.sample,
    )


def _rows(members: Sequence[Member], block_size: int) -> list[list[int]]:
    """Token, position and cache slot of each row."""
    places = [(member.seq.block_table, place) for member in members for place in _places(member)]
    return [
        [id_ for m in members for id_ in m.seq.tokens(m.start, m.start + m.tokens)],
        [place for _, place in places],
        [table[place // block_size] * block_size + place % block_size for table, place in places],
    ]


def _sampling(members: Sequence[Member], *, shift: int) -> list[int]:
    """Rows that sample; those after the single tokens stand `shift` further, behind padding."""
    ends = accumulate(member.tokens for member in members)
    return [
        end - 1 + (shift if member.tokens > 1 else 0)
        for member, end in zip(members, ends, strict=True)
        if samples(member)
    ]


def _places(member: Member) -> range:
    return range(member.start, member.start + member.tokens)


def _parts(members: Sequence[Member]) -> Iterator[tuple[int, Sequence[Member]]]:
    """Members that attention can take together, each part with its first row."""
    count = singles(members)
    if count:
        yield 0, members[:count]
    row = count
    for member in members[count:]:
        yield row, [member]
        row += member.tokens


def _table(members: Sequence[Member], block_size: int) -> list[int]:
    """The blocks of each member, one after the other; shorter contexts are padded with block 0."""
    blocks = -(-_length(members) // block_size)
    return [
        block for m in members for block in (m.seq.block_table[:blocks] + [0] * blocks)[:blocks]
    ]


def _length(members: Sequence[Member]) -> int:
    """KV tokens of the longest context, this step's included."""
    return max(member.start + member.tokens for member in members)


def _gathered(
    members: Sequence[Member],
    row: int,
    positions: Tensor,
    table: Tensor,
    *,
    head: int,
    block_size: int,
) -> Part:
    """A part of members with equally many tokens, whose rows begin at `row`, `head` rows later in
    the whole batch.
    """
    batch, queries, length = len(members), members[0].tokens, _length(members)
    rows = slice(row, row + batch * queries)
    starts = table.view(batch, -1, 1).long() * block_size
    slots = (starts + torch.arange(block_size, device=table.device)).flatten(1)[:, :length]
    shifted = slice(head + rows.start, head + rows.stop)
    return Gathered(shifted, slots, _visible(positions[rows].view(batch, queries), length))


def _visible(positions: Tensor, length: int) -> Tensor:
    """[B, 1, Q, L]: which of `length` positions each query [B, Q] may attend."""
    places = torch.arange(length, device=positions.device)
    return (places <= positions.unsqueeze(-1)).unsqueeze(1)
