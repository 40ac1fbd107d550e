"""Single facts about requests, as records: arrivals, ends, preemptions, hops, deliveries, notices.

Called by the hooks, all on one thread: that of the engine's steps, or of a front end's outputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from batchscope.adapters.book import Book
from batchscope.adapters.decodes import Decodes
from batchscope.adapters.facts import Progress, Traits
from batchscope.adapters.labels import Labels, clipped
from batchscope.adapters.naming import Naming
from batchscope.schemas.reasons import NoticeKind, PreemptMode, codes
from batchscope.schemas.records import (
    BLOCKED,
    DELIVERED,
    FAILED,
    FINISHED,
    NO_MEMBERS,
    NOTICE,
    NULL,
    NULL32,
    NULL64,
    PREEMPTED,
    RESUMED,
    TRANSFER,
    UNBLOCKED,
)
from batchscope.schemas.ring import LEVEL_MEMBERS, RingWriter, framed

MOST_INTRODUCTIONS = 16
"""LIVE records per iteration for decode members that a new segment doesn't know: 2, or a hundredth
of the members. One takes 4 us, and segments switch so often that 16 each time would be the
engine's p99; 2 each time would not reach the end of 2,000 members before the next switch."""
DEPARTED = 1024
"""Requests that left with batches in flight and are remembered for these."""
EDGES_PER_STEP = 64
NOTICE_BYTES = 200
EDGE_BYTES = 512
"""More than any edge record takes, framed, with the LIVE before it."""
SLACK = EDGE_BYTES * 8

_RECOMPUTE = codes(PreemptMode)[PreemptMode.RECOMPUTE]
_NOTICE = codes(NoticeKind)


class Edges:
    """Writes one record per fact; `level` decides whether members are named.

    While it is `holding`, ends and preemptions wait, to come after the COMPLETED that brought them.
    """

    def __init__(self, writer: RingWriter, traits: Traits, *, naming: Naming, level: int) -> None:
        self._writer = writer
        self._labels = Labels(writer.append)
        self._book = Book(writer.append, traits=traits, naming=naming, labels=self._labels)
        self.decodes = Decodes(self._book)
        self._segment = writer.segment
        self._id = traits.id
        self.level = level
        self._newest = self._settled = 0
        self.departed: dict[str, int] = {}
        """Request id -> newest iteration when it left or lost its place with batches in flight."""
        self.holding = False
        self._held: list[Callable[[], None]] = []
        self._due = False
        self.dropped = 0
        self._edges = 0

    def arrived(self, request: Any, *, at_ns: int) -> None:
        """A request entered the scheduler."""
        self._room(EDGE_BYTES)
        self._book.arrive(request, at_ns=at_ns)

    def finished(
        self,
        request: Any,
        *,
        at_ns: int,
        reason: int,
        output_tokens: int,
        engine_ns: tuple[int | None, int | None, int | None] = (None, None, None),
    ) -> None:
        """A request left; `engine_ns` are the engine's own queue time, TTFT and E2E."""
        own = [NULL64 if ns is None else ns for ns in engine_ns]
        self._edge(partial(self._finished, request, (at_ns, *own), (output_tokens, reason)))

    def renamed(self, request: Any, other: Any) -> None:
        """An engine's object goes on as another request; what it was is `other` from now on."""
        self._book.rename(request, other)

    def preempted(
        self,
        request: Any,
        *,
        at_ns: int,
        before: Progress,
        reason: int,
        mode: int = _RECOMPUTE,
    ) -> None:
        """A running request lost its place and the KV of `before.computed_tokens`."""
        self._edge(partial(self._preempted, request, at_ns, before, mode, reason))

    def resumed(self, request: Any, *, at_ns: int, target_tokens: int, cached_tokens: int) -> None:
        """A preempted request is admitted again."""
        serial = self._known(request, at_ns)
        fields = (at_ns, serial, target_tokens, cached_tokens)
        self._writer.append(RESUMED.struct.pack(RESUMED.kind, 0, *fields))

    def blocked(self, request: Any, *, at_ns: int, reason: int) -> None:
        """A waiting request is skipped from now on."""
        self._skipping(BLOCKED, request, at_ns, reason)

    def unblocked(self, request: Any, *, at_ns: int, reason: int) -> None:
        """The skipping ended."""
        self._skipping(UNBLOCKED, request, at_ns, reason)

    def transfer(
        self,
        request: Any,
        *,
        start_ns: int,
        at_ns: int,
        direction: int,
        blocks: int | None = None,
        nbytes: int | None = None,
        handshake_ns: int | None = None,
        wait_ns: int | None = None,
        peer: str | None = None,
        failed: bool = False,
    ) -> None:
        """A KV hop of a known request ended, perhaps after its end; `direction` is a code."""
        self._room(EDGE_BYTES)
        fields = (
            *(at_ns, start_ns),
            *(NULL64 if ns is None else ns for ns in (handshake_ns, wait_ns)),
            NULL["Q"] if nbytes is None else nbytes,
            self._book.serial_of(request),
            NULL32 if blocks is None else blocks,
            self._labels.number(peer),
            direction,
        )
        flags = FAILED if failed else 0
        self._writer.append(TRANSFER.struct.pack(TRANSFER.kind, flags, *fields))

    def delivered(
        self, requests: Sequence[Any], tokens: Sequence[int], *, at_ns: int, ready_at_ns: int | None
    ) -> None:
        """A front end handed each of these requests so many tokens, which the core had ready."""
        needed = framed(DELIVERED.struct.size + 8 * len(requests))
        named = self.level >= LEVEL_MEMBERS and needed <= self._writer.largest
        self._room(needed * named + MOST_INTRODUCTIONS * EDGE_BYTES + SLACK)
        serials = self._book.introduced(requests, at_ns=at_ns, most=MOST_INTRODUCTIONS)
        pairs = array("I", bytes(8 * len(serials)))
        pairs[0::2], pairs[1::2] = serials, array("I", tokens)
        ready = NULL64 if ready_at_ns is None else ready_at_ns
        fields = (0 if named else NO_MEMBERS, at_ns, ready, len(serials))
        body = DELIVERED.struct.pack(DELIVERED.kind, *fields)
        self._writer.append(body + pairs.tobytes() if named else body)

    def notice(
        self, kind: NoticeKind, text: str, *, at_ns: int, seam: str = "", count: int = 1
    ) -> None:
        """Something about the adapter that the operator should read."""
        raw = clipped(text, NOTICE_BYTES)
        self._room(EDGE_BYTES)
        fields = (at_ns, count, self._labels.number(seam), len(raw), _NOTICE[kind])
        self._writer.append(NOTICE.struct.pack(NOTICE.kind, 0, *fields) + raw)

    def release(self) -> None:
        """End of `holding`: write what was held back."""
        self.holding = False
        if self._held:
            held, self._held = self._held, []
            for write in held:
                write()

    def _room(self, nbytes: int) -> bool:
        """Have so many bytes free in one segment; True when it is a new one: it stands alone."""
        self._writer.reserve(nbytes)
        if self._writer.segment == self._segment:
            return False
        self._segment = self._writer.segment
        self._book.forget()
        self.decodes.new_segment()
        return True

    def _known(self, request: Any, at_ns: int, progress: Progress | None = None) -> int:
        self._room(EDGE_BYTES)
        return self._book.known(request, at_ns=at_ns, progress=progress)

    def _edge(self, write: Callable[[], None]) -> None:
        if self.holding:
            self._held.append(write)
            self._due = True
        else:
            write()

    def _finished(self, request: Any, times: tuple[int, ...], end: tuple[int, int]) -> None:
        serial = self._known(request, times[0])
        self._writer.append(FINISHED.struct.pack(FINISHED.kind, 0, *times, serial, *end))
        self._depart(request, serial)
        self._book.leave(request)

    def _preempted(
        self, request: Any, at_ns: int, before: Progress, mode: int, reason: int
    ) -> None:
        serial = self._known(request, at_ns, before)
        fields = (at_ns, serial, before.computed_tokens, mode, reason)
        self._writer.append(PREEMPTED.struct.pack(PREEMPTED.kind, 0, *fields))
        self._depart(request, serial)

    def _depart(self, request: Any, serial: int) -> None:
        self.decodes.drop(serial)
        if self._newest > self._settled and len(self.departed) < DEPARTED:
            self.departed[self._id(request)] = self._newest

    def _skipping(self, record: Any, request: Any, at_ns: int, reason: int) -> None:
        self._edges += 1
        self._due = True
        if self._edges > EDGES_PER_STEP:
            self.dropped += 1
        else:
            serial = self._known(request, at_ns)
            self._writer.append(record.struct.pack(record.kind, 0, at_ns, serial, reason))
