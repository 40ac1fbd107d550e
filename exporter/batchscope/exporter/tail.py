"""From validated ring bytes to numpy columns: one gather per record kind, no Python per record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from batchscope.schemas.records import (
    BY_KIND,
    DELIVERED,
    LOSS,
    NO_MEMBERS,
    SAME_DECODES,
    SCHEDULED,
    Record,
    Tail,
)
from batchscope.schemas.ring import Raw
from batchscope.schemas.ring.layout import FIRST_SEQ, FRAME_BYTES, frame

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]


@dataclass(frozen=True)
class Columns:
    """All records of one kind in a chunk, m of them, in the chunk's order.

    `index`: i8[m], their positions in the chunk. `fields`: structured [m] of `Record.dtype`.
    """

    index: Ints
    fields: Rows
    _record: Record
    _data: Bytes
    _starts: Ints

    def tail(self, name: str) -> tuple[Ints, Rows]:
        """(offsets i8[m + 1], rows): `rows[offsets[i]:offsets[i + 1]]` belong to record i.

        Rows are structured (`Tail.dtype`), writable, the caller's own. KeyError: no such tail.
        """
        starts = self._starts
        for tail in self._record.tails:
            counts = _counts(self.fields, self._record, tail)
            if tail.name == name:
                return _gather(self._data, starts=starts, counts=counts, tail=tail)
            starts = starts + counts * tail.size
        raise KeyError(name)


@dataclass
class Chunk:
    """A stretch of one ring, n records in seq order, as columns.

    `seq`, `byte_pos`: the ring's position after it. `kind`, `flags`: u2[n]; `seqs`: i8[n].
    `unknown` counts records of kinds that only a newer version knows, `malformed` those that are
    shorter than their own counts say: both are in no Columns.
    """

    ring_id: int
    ring_uuid: str
    seq: int
    byte_pos: int
    kind: npt.NDArray[np.uint16]
    flags: npt.NDArray[np.uint16]
    seqs: Ints
    unknown: int
    malformed: int
    _columns: dict[int, Columns] = field(repr=False)

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, record: Record) -> Columns | None:
        """Columns of one kind; None when the chunk has none."""
        return self._columns.get(record.kind)


def chunk_from(raw: Raw, ring_id: int, ring_uuid: str, *, seq: int, byte_pos: int) -> Chunk:
    """Columns of what a reader returned; `seq`, `byte_pos` are its position after that poll."""
    data = np.frombuffer(raw.data, np.uint8, len(raw.data) & -8)
    offsets = np.array(raw.offsets, np.int64)
    words = data.view("<u8")
    heads = words[(offsets + FRAME_BYTES) >> 3]
    sizes = (words[offsets >> 3] & 0xFFFF_FFFF).astype(np.int64) - FRAME_BYTES
    kind = (heads & 0xFFFF).astype(np.uint16)
    if not raw.is_loss:
        kind[kind == LOSS.kind] = 0  # only a reader may say so
    columns, unknown = _all_columns(data, bodies=offsets + FRAME_BYTES, sizes=sizes, kind=kind)
    return Chunk(
        ring_id=ring_id,
        ring_uuid=ring_uuid,
        seq=seq,
        byte_pos=byte_pos,
        kind=kind,
        flags=(heads >> 16 & 0xFFFF).astype(np.uint16),
        seqs=np.arange(raw.first_seq, raw.first_seq + len(offsets), dtype=np.int64),
        unknown=unknown,
        malformed=len(kind) - unknown - sum(len(each.index) for each in columns.values()),
        _columns=columns,
    )


def chunk_of(
    bodies: Sequence[bytes], *, ring_id: int = 1, ring_uuid: str = "", first_seq: int = FIRST_SEQ
) -> Chunk:
    """A chunk of record bodies without a file or a reader (tests, replays of what was kept)."""
    frames = [frame(body, seq=seq, seed=0) for seq, body in enumerate(bodies, first_seq)]
    ends = np.cumsum([0, *map(len, frames)]).tolist()
    is_loss = any(body[:2] == LOSS.kind.to_bytes(2, "little") for body in bodies)
    raw = Raw(b"".join(frames), ends[:-1], first_seq, is_loss=is_loss)
    return chunk_from(raw, ring_id, ring_uuid, seq=first_seq + len(frames), byte_pos=ends[-1])


def _all_columns(
    data: Bytes, *, bodies: Ints, sizes: Ints, kind: npt.NDArray[np.uint16]
) -> tuple[dict[int, Columns], int]:
    """(columns by kind, how many records are of no kind that we know)."""
    columns: dict[int, Columns] = {}
    unknown = 0
    for code, count in Counter(kind.tolist()).items():
        if (record := BY_KIND.get(code)) is None:
            unknown += count
            continue
        (index,) = (kind == code).nonzero()
        found = _columns(data, index=index, bodies=bodies, sizes=sizes, record=record)
        if len(found.index):
            columns[code] = found
    return columns, unknown


def _columns(data: Bytes, *, index: Ints, bodies: Ints, sizes: Ints, record: Record) -> Columns:
    """The records at `index` that are as long as they say."""
    fixed = record.struct.size
    index = index[sizes[index] >= fixed]
    starts = bodies[index]
    fields = _fixed(data, starts, record)
    needed = np.full(len(index), fixed, np.int64)
    for tail in record.tails:
        needed += _counts(fields, record, tail) * tail.size
    whole = needed <= sizes[index]
    if not whole.all():
        index, starts, fields = index[whole], starts[whole], fields[whole]
    return Columns(index, fields, record, data, starts + fixed)


_LEFT_OUT = {
    (SCHEDULED.kind, "decode"): SAME_DECODES | NO_MEMBERS,
    (SCHEDULED.kind, "prefill"): NO_MEMBERS,
    (SCHEDULED.kind, "drafts"): NO_MEMBERS,
    (DELIVERED.kind, "tokens"): NO_MEMBERS,
}
"""Flags under which a tail has no rows although its count field counts members."""


def _counts(fields: Rows, record: Record, tail: Tail) -> Ints:
    """Rows that each record's tail really has."""
    counts = fields[tail.count].astype(np.int64)
    if left_out := _LEFT_OUT.get((record.kind, tail.name)):
        counts[(fields["flags"] & left_out) != 0] = 0
    return counts


def _fixed(data: Bytes, starts: Ints, record: Record) -> Rows:
    """Fixed parts as structured rows; every start and size is a multiple of 8."""
    words = data.view("<u8")[(starts >> 3)[:, None] + np.arange(record.struct.size >> 3)]
    rows: Rows = words.view(record.dtype).reshape(len(starts))
    return rows


def _gather(data: Bytes, *, starts: Ints, counts: Ints, tail: Tail) -> tuple[Ints, Rows]:
    """Rows of one tail of many records, one after another, in one gather of the widest unit."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    unit = 1 if tail.size % 4 else 4  # texts come last in a record: rows begin at a multiple of 4
    each = tail.size // unit
    source = np.repeat(starts // unit - offsets[:-1] * each, counts * each)
    source += np.arange(offsets[-1] * each)
    rows = data.view(f"<u{unit}")[source].view(tail.dtype)
    return offsets, rows
