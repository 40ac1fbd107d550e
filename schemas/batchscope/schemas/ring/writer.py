"""The writing half: runs on the engine's stepping thread, and only there."""

from __future__ import annotations

import mmap
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

from batchscope.schemas.records import PAD, SCHEMA_VERSION, SEGMENT
from batchscope.schemas.ring.folder import (
    GROWING_SUFFIX,
    RING_SUFFIX,
    create,
    drop,
    is_shared,
    prepare,
)
from batchscope.schemas.ring.layout import (
    FIRST_ITERATION,
    FIRST_SEQ,
    HEADER_BYTES,
    PAD_BYTES,
    POSITION_WORD,
    SEGMENTS,
    SEQ,
    SEQ_WORD,
    WORD,
    Header,
    RingUnavailable,
    framed,
    pack_header,
)

LARGEST_RING = 16 << 20
SMALLEST_RING = 1 << 20
_PAGE = 4096
_PAD_BODY = PAD.struct.pack(PAD.kind, 0)

_writers: weakref.WeakSet[RingWriter] = weakref.WeakSet()
_fork_hooks: list[Callable[[], None]] = []


class RingWriter:
    """One ring of one engine. Nothing is made before `grow`, nothing blocks after it.

    `iteration_id` is the id that the next SCHEDULED will carry (from 1): the caller increments it
    *after* that record's append, since the append may open a segment, which states it. `segment`
    goes up by one whenever a segment begins: what was announced before is to be announced again.
    `largest` is how many framed bytes a record may have, known from the first `grow` on, `left` how
    many this segment still takes, `seq` the number of the next record. What `append` reads is open
    to the one who writes in every iteration of an engine and spares itself that call: `map` and its
    `words`, `at` (byte in it of the next record), `lap_bytes` (to make a position of that), `seed`.
    """

    def __init__(
        self,
        folder: Path,
        hello: dict[str, Any],
        *,
        mono: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        size: int | None = None,
        group: str | None = None,
    ) -> None:
        self._uuid = uuid4().bytes
        self.ring_uuid = self._uuid.hex()
        self.path = folder / (self.ring_uuid + RING_SUFFIX)
        self.iteration_id = FIRST_ITERATION
        self.segment = 0
        self.ready = False
        self._hello = hello
        self._mono, self._wall = mono, wall
        self._size, self._group = size, group
        self.seed = crc32(self._uuid)
        self._fd = -1
        self._grown = 0
        self._segment_bytes = 0
        self.largest = 0
        self.map: Any = None
        self.words: Any = None
        self.seq = FIRST_SEQ
        self.at = HEADER_BYTES
        self.left = -1
        self.lap_bytes = -HEADER_BYTES
        _writers.add(self)

    def grow(self) -> bool:
        """Allocate and touch one more segment (1 MiB: about 1 ms); True once all are there.

        To be called once per iteration until then. RingUnavailable when the system refuses; what
        was made so far is removed then.
        """
        if self.ready:
            return True
        try:
            return self._grow()
        except (OSError, TypeError, ValueError, RingUnavailable) as why:
            self.close()
            text = why.strerror if isinstance(why, OSError) else str(why)
            raise RingUnavailable(f"no ring in {self.path.parent}: {text}") from why

    def _grow(self) -> bool:
        if self._fd < 0:
            self._begin()
        self._have(HEADER_BYTES + self._grown * self._segment_bytes, self._segment_bytes)
        self._grown += 1
        if self._grown == SEGMENTS:
            self._finish()
        return self.ready

    def _begin(self) -> None:
        folder = self.path.parent
        _watch_forks()
        prepare(folder, group=self._group)
        self._segment_bytes = _ring_bytes(folder, self._size) // SEGMENTS // _PAGE * _PAGE
        self.largest = self._segment_bytes // 4
        self._fd = create(self._growing, mode=0o640 if is_shared(folder) else 0o600)
        os.ftruncate(self._fd, HEADER_BYTES + SEGMENTS * self._segment_bytes)
        self.map = mmap.mmap(self._fd, HEADER_BYTES + SEGMENTS * self._segment_bytes)
        self.words = memoryview(self.map).cast("Q")
        self._have(0, HEADER_BYTES)

    def _have(self, start: int, nbytes: int) -> None:
        """Allocate so much of the file, then touch its pages: the first write to a hole of a full
        tmpfs is SIGBUS, that to any other page a fault of 2 us on the engine's thread.
        """
        os.posix_fallocate(self._fd, start, nbytes)
        self.map[start : start + nbytes : _PAGE] = bytes(nbytes // _PAGE)

    def _finish(self) -> None:
        """Write the header and the first SEGMENT, then show the file under its final name."""
        mono_ns, unix_ns = self._mono(), self._wall()
        own = {
            "schema_version": SCHEMA_VERSION,
            "ring_uuid": self.ring_uuid,
            "mono_ns": mono_ns,
            "unix_ns": unix_ns,
            "pid": os.getpid(),
        }
        header = Header(
            self._uuid, self._segment_bytes, SEGMENTS, mono_ns, unix_ns, {**self._hello, **own}
        )
        page = pack_header(header)
        self.map[: len(page)] = page
        self._open_segment(self._opening(0))
        os.rename(self._growing, self.path)
        self.ready = True

    @property
    def _growing(self) -> Path:
        return self.path.with_suffix(GROWING_SUFFIX)

    def reserve(self, nbytes: int) -> bool:
        """Open a new segment unless `nbytes` (a sum of `framed` sizes) fit; True when it did."""
        if nbytes <= self.left:
            return False
        self._switch()
        return True

    def append(self, body: bytes) -> None:
        """Write and publish one record: `Record.struct.pack(kind, flags, *fields)` and its tails.

        Opens the next segment when it must. ValueError, and nothing is changed, when it is larger
        than `largest`.
        """
        room = framed(len(body))
        if room > self.left or room > self.largest:
            self._make_room(room)
        numbered, at = SEQ.pack(self.seq) + body, self.at
        length = WORD.size + len(numbered)
        self.map[at : at + length] = WORD.pack(length, crc32(numbered, self.seed)) + numbered
        self.at = at = at + room
        self.left -= room
        self.seq += 1
        self.words[POSITION_WORD] = at + self.lap_bytes
        self.words[SEQ_WORD] = self.seq

    def _make_room(self, room: int) -> None:
        if room > self.largest and self.ready:
            raise ValueError(f"a record of {room} bytes, the largest is {self.largest}")
        self._switch()

    def _switch(self) -> None:
        if not self.ready:
            raise RingUnavailable("this ring is not ready, closed, or another process's")
        opening = self._opening(self.segment + 1)  # all that can fail comes before the PAD
        self.left = PAD_BYTES
        self.append(_PAD_BODY)
        self.segment += 1
        self._open_segment(opening)

    def _opening(self, segment: int) -> bytes:
        lap, index = divmod(segment, SEGMENTS)
        fields = (self._mono(), self._wall(), self.iteration_id, lap, index)
        return SEGMENT.struct.pack(SEGMENT.kind, 0, *fields)

    def _open_segment(self, opening: bytes) -> None:
        lap, index = divmod(self.segment, SEGMENTS)
        self.at = HEADER_BYTES + index * self._segment_bytes
        self.lap_bytes = lap * SEGMENTS * self._segment_bytes - HEADER_BYTES
        self.left = self._segment_bytes - PAD_BYTES
        self.append(opening)

    def close(self, *, unlink: bool = False) -> None:
        """Give the ring up; safe to repeat. The file stays for its reader unless `unlink`; one that
        was still growing has no reader and goes.
        """
        growing = self._fd >= 0 and not self.ready
        self._unmap()
        if self._fd >= 0:
            drop(self._fd)
            self._fd = -1
        self._grown = 0
        if growing:
            self._growing.unlink(missing_ok=True)
        if unlink:
            self.path.unlink(missing_ok=True)

    def _unmap(self) -> None:
        self.ready = False
        self.left = -1
        if self.words is not None:
            self.words.release()
            self.map.close()
        self.words = self.map = None

    def _leave_to_parent(self) -> None:
        """In a forked child: the ring is the parent's, only its copies of map and descriptor go."""
        self._unmap()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _ring_bytes(folder: Path, size: int | None) -> int:
    """All segments: as asked, else a quarter of what is free: collectives live there, too."""
    if size is not None:
        return max(size, SEGMENTS * _PAGE)
    room = os.statvfs(folder)
    return max(SMALLEST_RING, min(LARGEST_RING, room.f_bavail * room.f_frsize // 4))


def _watch_forks() -> None:
    """Registered at first use: importing this module changes nothing in an engine."""
    if not _fork_hooks:
        _fork_hooks.append(_after_fork)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for writer in list(_writers):
        writer._leave_to_parent()
