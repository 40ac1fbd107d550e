"""A ring's records as plain values, read without numpy and without the exporter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

from batchscope.schemas import records as r
from batchscope.schemas.ring import RingReader, list_rings

_FRAME_BYTES = 16


@dataclass(frozen=True)
class Seen:
    """One record: absent fields are None, texts str, other tails lists of tuples or ints."""

    name: str
    flags: int
    fields: dict[str, Any]
    tails: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.tails[name] if name in self.tails else self.fields[name]


def read(folder: Path) -> list[Seen]:
    """All records of the only ring in the folder."""
    (path,) = list_rings(folder)
    return list(records(RingReader(path)))


def records(reader: RingReader) -> Iterator[Seen]:
    """What the reader can get now."""
    while (raw := reader.poll()) is not None:
        for offset in raw.offsets:
            length = int.from_bytes(raw.data[offset : offset + 4], "little")
            yield decode(raw.data[offset + _FRAME_BYTES : offset + length])


def decode(body: bytes) -> Seen:
    """One body by its field table."""
    record = r.BY_KIND[int.from_bytes(body[:2], "little")]
    _, flags, *values = record.struct.unpack_from(body)
    fields = {
        f.name: None if f.optional and value == r.NULL[f.code] else value
        for f, value in zip(record.fields, values, strict=True)
    }
    tails, at = {}, record.struct.size
    for tail in record.tails:
        count = 0 if left_out(flags, tail.name) else int(fields[tail.count] or 0)
        tails[tail.name] = _rows(tail, body[at : at + count * tail.size])
        at += count * tail.size
    return Seen(record.name, flags, fields, tails)


def left_out(flags: int, tail: str) -> bool:
    """Whether a SCHEDULED or DELIVERED with these flags has the count but not the rows."""
    if tail == "decode":
        return bool(flags & (r.SAME_DECODES | r.NO_MEMBERS))
    return tail in ("prefill", "drafts", "tokens") and bool(flags & r.NO_MEMBERS)


def _rows(tail: r.Tail, raw: bytes) -> Any:
    if tail.fields[0].name == "byte":
        return raw.decode()
    row = Struct("<" + "".join(f.code for f in tail.fields))
    rows = list(row.iter_unpack(raw))
    return [value for (value,) in rows] if len(tail.fields) == 1 else rows
