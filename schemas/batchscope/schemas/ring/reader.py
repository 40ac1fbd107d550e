"""The reading half: copies first, believes nothing but a CRC and the expected seq.

Used by the exporter's tail, one reader per ring and thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from batchscope.schemas.records import LOSS, NULL, PAD, SCHEDULED, SEGMENT
from batchscope.schemas.ring.folder import is_locked, let_go, open_existing
from batchscope.schemas.ring.layout import (
    FIRST_ITERATION,
    FIRST_SEQ,
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    HINT,
    HINT_BYTE,
    PAD_BYTES,
    SEQ,
    Header,
    RingFormatError,
    frame,
    framed,
    parse_header,
)

POLLS_BEFORE_REJECTING = 3
REJECT_INTERVAL_NS = 50_000_000
_PROBE_BYTES = 4096
_SEGMENT_ROOM = framed(SEGMENT.struct.size)
_KIND = slice(FRAME_BYTES, FRAME_BYTES + 2)


@dataclass(frozen=True)
class Raw:
    """Validated records in seq order; frame i begins at `data[offsets[i]]`, a multiple of 8.

    A loss is a Raw of its own: one LOSS record, with the seq of the first lost one. The next Raw
    begins with a SEGMENT then.
    """

    data: bytes
    offsets: list[int]
    first_seq: int
    is_loss: bool = False

    @property
    def seqs(self) -> range:
        """Seq of each record."""
        return range(self.first_seq, self.first_seq + len(self.offsets))


class _Opening(NamedTuple):
    """A SEGMENT record that validated, and where its segment begins."""

    seq: int
    byte_pos: int
    iteration_id: int
    unix_ns: int


class RingReader:
    """Reads one ring from a position on; any number of readers may, none is noticed by the writer.

    `position` is what an earlier reader's `position` said, None the ring's very first record (what
    is gone by then is reported as lost). `iteration` is the id that the next SCHEDULED there
    carries, where known: it makes a loss right after a restart exact in iterations too. Opening
    raises RingFormatError, RingVersionError, OSError.
    """

    def __init__(
        self,
        path: Path,
        *,
        position: tuple[int, int] | None = None,
        iteration: int | None = None,
        mono: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = path
        self.rejected = 0
        self._mono = mono
        self._fd = open_existing(path, os.O_RDONLY)
        try:
            self._header = _read_header(self._fd, path)
        except Exception:
            let_go(self._fd)
            raise
        self._seed = self._header.seed
        self._seq, self._pos = position or (FIRST_SEQ, 0)
        self._iteration = iteration if position else FIRST_ITERATION
        self._bad_polls = 0
        self._bad_since_ns = 0

    @property
    def hello(self) -> dict[str, Any]:
        """What the adapter said of its engine when it attached."""
        return self._header.hello

    @property
    def ring_uuid(self) -> str:
        """32 hex digits."""
        return self._header.ring_uuid.hex()

    @property
    def ring_id(self) -> int:
        """The first 16 of those digits as a number: the key of every table."""
        return int.from_bytes(self._header.ring_uuid[:8], "big")

    @property
    def clock_pair(self) -> tuple[int, int]:
        """(monotonic, wall) in ns, read together when the ring began."""
        return self._header.mono_ns, self._header.unix_ns

    @property
    def segment_bytes(self) -> int:
        """Bytes of one segment."""
        return self._header.segment_bytes

    @property
    def position(self) -> tuple[int, int]:
        """(next seq expected, its byte position counted over all laps)."""
        return self._seq, self._pos

    @property
    def iteration(self) -> int | None:
        """The id that the next SCHEDULED must carry; None when no record said so yet."""
        return self._iteration

    def seek(self, *, unix_ns: int) -> None:
        """Go to the segment that was being written then, else to the oldest there is.

        What came before counts as unwanted, not as lost. Without a valid segment it stays put.
        """
        openings = sorted(self._openings())
        earlier = [opening for opening in openings if opening.unix_ns <= unix_ns]
        for start in (*earlier[-1:], *openings[:1])[:1]:
            self._seq, self._pos, self._iteration = start.seq, start.byte_pos, start.iteration_id

    def alive(self) -> bool:
        """Whether the process that writes still lives."""
        return is_locked(self._fd)

    def close(self) -> None:
        """Done with this ring."""
        let_go(self._fd)

    def poll(self, max_bytes: int = 4 << 20) -> Raw | None:
        """The next validated records (a LOSS when some are gone), None when there are none yet.

        At most about `max_bytes`, but always at least one record when there is one.
        """
        head_pos, head_seq = HINT.unpack(self._read(HINT_BYTE - HEADER_BYTES, HINT.size, b"\0"))
        raw = self._accept(self._copy(head_pos, max_bytes))
        if raw is not None:
            self._bad_polls = 0
            return raw
        return self._trouble(head_pos, head_seq)

    def _copy(self, head_pos: int, max_bytes: int) -> bytes:
        """Private copy from our position on: to the head if plausible, or the ring's end."""
        header = self._header
        at = self._pos % header.ring_bytes
        new = head_pos - self._pos
        want = max(new, _PROBE_BYTES) if new <= header.ring_bytes else _PROBE_BYTES
        most = min(want, max(max_bytes, FRAME.size), header.ring_bytes - at)
        data = self._read(at, most + 7 & -8)
        if len(data) < FRAME.size:
            return data
        length, _, seq = FRAME.unpack_from(data)
        if length > len(data) and seq == self._seq and length <= header.segment_bytes:
            return self._read(at, min(length + 7 & -8, header.ring_bytes - at))
        return data

    def _read(self, at: int, nbytes: int, fill: bytes = b"") -> bytes:
        data = os.pread(self._fd, nbytes, HEADER_BYTES + at)
        return data.ljust(nbytes, fill) if fill else data

    def _accept(self, data: bytes) -> Raw | None:
        segment = self._header.segment_bytes
        left = segment - self._pos % segment
        offsets, end = validate(data, seq=self._seq, seed=self._seed, left=left, segment=segment)
        if not offsets:
            return None
        raw = Raw(data, offsets, self._seq)
        self._iteration = _next_iteration(data, offsets, self._iteration)
        self._seq += len(offsets)
        self._pos += end
        return raw

    def _trouble(self, head_pos: int, head_seq: int) -> Raw | None:
        """Nothing valid at our position: overtaken, not yet written, or damaged."""
        header = self._header
        lap_end = self._pos - self._pos % header.segment_bytes + header.ring_bytes
        overtaken = head_pos >= lap_end or self._sees_later()
        if overtaken and (raw := self._resume(rejected=0)):
            return raw
        if head_seq <= self._seq:
            self._bad_polls = 0
            return None
        if not self._is_damage():
            return None
        return self._resume(rejected=1) or self._end_of_dead(head_pos, head_seq)

    def _sees_later(self) -> bool:
        """Whether a valid record of a later lap lies where ours should."""
        header = self._header
        at = self._pos % header.ring_bytes
        room = header.segment_bytes - at % header.segment_bytes
        data = self._read(at, FRAME.size)
        if len(data) < FRAME.size:
            return False
        length, crc, seq = FRAME.unpack(data)
        if seq <= self._seq or not PAD_BYTES <= length <= room:
            return False
        record = self._read(at, length)
        return bool(crc32(record[8:], self._seed) == crc)

    def _is_damage(self) -> bool:
        """Whether this has been bad for three polls at least 50 ms apart."""
        now = self._mono()
        if self._bad_polls and now - self._bad_since_ns < REJECT_INTERVAL_NS:
            return False
        self._bad_polls += 1
        self._bad_since_ns = now
        return self._bad_polls >= POLLS_BEFORE_REJECTING

    def _resume(self, *, rejected: int) -> Raw | None:
        """Go on at the oldest segment beyond us that validates; None when there is none (yet)."""
        later = [o for o in self._openings() if o.seq > self._seq and o.byte_pos > self._pos]
        if not later:
            return None
        first = min(later)
        known = self._iteration is not None and first.iteration_id >= self._iteration
        iterations = first.iteration_id - (self._iteration or 0) if known else NULL["Q"]
        raw = self._lose(first.seq, iterations=iterations, rejected=rejected)
        self._pos, self._iteration = first.byte_pos, first.iteration_id
        return raw

    def _lose(self, next_seq: int, *, iterations: int, rejected: int) -> Raw:
        first = self._seq
        fields = (first, next_seq - first, iterations, rejected)
        body = LOSS.struct.pack(LOSS.kind, 0, *fields)
        self._seq = next_seq
        self._bad_polls = 0
        self.rejected += rejected
        return Raw(frame(body, seq=first, seed=self._seed), [0], first, is_loss=True)

    def _openings(self) -> list[_Opening]:
        found = (self._opening(index) for index in range(self._header.segments))
        return [opening for opening in found if opening is not None]

    def _opening(self, index: int) -> _Opening | None:
        header = self._header
        data = self._read(index * header.segment_bytes, _SEGMENT_ROOM)
        if len(data) < _SEGMENT_ROOM:
            return None
        length, crc, seq = FRAME.unpack_from(data)
        if length != FRAME_BYTES + SEGMENT.struct.size or crc32(data[8:length], self._seed) != crc:
            return None
        kind, _, _, unix_ns, iteration_id, lap, said = SEGMENT.struct.unpack_from(data, FRAME_BYTES)
        if kind != SEGMENT.kind or said != index:
            return None
        byte_pos = (lap * header.segments + index) * header.segment_bytes
        return _Opening(seq, byte_pos, iteration_id, unix_ns)

    def _end_of_dead(self, head_pos: int, head_seq: int) -> Raw | None:
        """A dead ring's last segment is damaged: its rest is lost, if the hints are plausible."""
        left = self._header.segment_bytes - self._pos % self._header.segment_bytes
        nbytes, records = head_pos - self._pos, head_seq - self._seq
        if self.alive() or not 0 < nbytes <= left or records * PAD_BYTES > nbytes:
            return None
        raw = self._lose(head_seq, iterations=NULL["Q"], rejected=1)
        self._pos, self._iteration = head_pos, None
        return raw

    def drained(self) -> bool:
        """Whether the writer is gone and nothing is left that a later poll could return."""
        if self.alive():
            return False
        _, head_seq = HINT.unpack(self._read(HINT_BYTE - HEADER_BYTES, HINT.size, b"\0"))
        return self._bad_polls >= POLLS_BEFORE_REJECTING or head_seq <= self._seq

    def newest_unix_ns(self) -> int:
        """Wall clock when the newest segment was opened: the ring was alive then."""
        return max([self._header.unix_ns, *(o.unix_ns for o in self._openings())])


def validate(data: bytes, *, seq: int, seed: int, left: int, segment: int) -> tuple[list[int], int]:
    """Offsets of the records that validate one after another from the start of `data`, and the end.

    `seq` is the first one's, `left` the bytes to the end of its segment. A PAD leads to the next
    segment. This loop sees every record: it is what reading costs.
    """
    view, unpack, crc_of = memoryview(data), FRAME.unpack_from, crc32
    offsets: list[int] = []
    found = offsets.append
    at, limit, size = 0, left, len(data)
    end = min(limit, size)
    while at + PAD_BYTES <= end:
        length, crc, got = unpack(data, at)
        stop = at + length
        after = stop + 7 & -8
        if (
            got != seq
            or length < PAD_BYTES
            or after > end
            or crc_of(view[at + 8 : stop], seed) != crc
        ):
            break
        found(at)
        seq += 1
        at = after
        if length == PAD_BYTES and data[stop - 8] == PAD.kind and not data[stop - 7]:
            at = limit
            limit += segment
            end = min(limit, size)
    return offsets, at


def _next_iteration(data: bytes, offsets: list[int], before: int | None) -> int | None:
    """The iteration id to expect after these records."""
    for at in reversed(offsets):
        kind = int.from_bytes(data[at + FRAME_BYTES : at + FRAME_BYTES + 2], "little")
        if kind == SCHEDULED.kind:
            return int(SEQ.unpack_from(data, at + FRAME_BYTES + 8)[0]) + 1
        if kind == SEGMENT.kind:
            return int(SEQ.unpack_from(data, at + FRAME_BYTES + 8 + 16)[0])
    return before


def _read_header(fd: int, path: Path) -> Header:
    header = parse_header(os.pread(fd, HEADER_BYTES, 0), name=path.name)
    if os.fstat(fd).st_size != HEADER_BYTES + header.ring_bytes:
        raise RingFormatError(f"{path.name} is not as long as its header says")
    return header
