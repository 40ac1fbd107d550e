"""From facts to records: the writer's middle layer, the same under every adapter.

Called by the hooks, all on one thread: that of the engine's steps, or of a front end's outputs.
Keeps no engine object but the decode members of the last decision, and those only until one of them
leaves.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any

from batchscope.adapters.book import Book
from batchscope.adapters.decodes import Decodes
from batchscope.adapters.empties import Empties
from batchscope.adapters.facts import Decision, Progress, Traits
from batchscope.adapters.labels import Labels, clipped
from batchscope.adapters.naming import Naming
from batchscope.schemas.reasons import NoticeKind, PreemptMode, codes
from batchscope.schemas.records import (
    BLOCKED,
    BYE,
    COMPLETED,
    DELIVERED,
    DUMMY,
    FAILED,
    FINISHED,
    NO_MEMBERS,
    NOTICE,
    NULL,
    NULL32,
    NULL64,
    PREEMPTED,
    RESUMED,
    SAME_DECODES,
    SCHEDULED,
    TRANSFER,
    UNBLOCKED,
)
from batchscope.schemas.ring import LEVEL_MEMBERS, RingWriter, framed

MOST_INTRODUCTIONS = 16
"""LIVE records per iteration for decode members that a new segment doesn't know: 2, or a hundredth
of the members. One takes 4 us, and segments switch so often that 16 each time would be the
engine's p99; 2 each time would not reach the end of 2,000 members before the next switch."""
IN_FLIGHT = 64
"""Batches between schedule and update that are remembered; far more than any engine pipelines."""
DEPARTED = 1024
"""Requests that left with batches in flight and are remembered for these."""
EDGES_PER_STEP = 64
NOTICE_BYTES = 200
EDGE_BYTES = 512
"""More than any edge record takes, framed, with the LIVE before it."""

_SLACK = EDGE_BYTES * 8
_PREFILL_ROW = Struct("<3I")
_PAIR_ROW = Struct("<2I")
_DEFERRED_ROW = Struct("<IHH")
_NUMBERED_SCHEDULED = Struct(f"<Q{SCHEDULED.struct.format[1:]}").pack
_NUMBERED_COMPLETED = Struct(f"<Q{COMPLETED.struct.format[1:]}").pack
"""With the ring's seq in front, as `publish` takes them."""
_COMPLETED_BYTES = framed(COMPLETED.struct.size)
_FRAMED_BYTES = framed(SCHEDULED.struct.size) + 8
_RECOMPUTE = codes(PreemptMode)[PreemptMode.RECOMPUTE]
_NOTICE = codes(NoticeKind)


class Recorder:
    """Writes what the translations say; `level` decides whether members are named.

    `observer_ns` is set by the hooks: our own time on this thread for the iteration before.
    """

    def __init__(self, writer: RingWriter, traits: Traits, *, naming: Naming, level: int) -> None:
        self._writer = writer
        self._largest_tails = writer.largest - _FRAMED_BYTES
        self._head = 0
        self._due = False
        self._labels = Labels(writer.append)
        self._book = Book(writer.append, traits=traits, naming=naming, labels=self._labels)
        self._segment = writer.segment
        self.level = level
        self.observer_ns = NULL64
        self.completed_ns = 0
        self._decodes = Decodes(self._book)
        self._in_flight: dict[int, int] = {}
        self._newest = self._settled = 0
        self.departed: dict[str, int] = {}
        """Request id -> newest iteration when it left or lost its place with batches in flight."""
        self._ids = traits.ids
        self.holding = False
        """Set while an output update runs: ends and preemptions in it come after its COMPLETED."""
        self._held: list[Callable[[], None]] = []
        self.dropped = 0
        self._dropped_said = 0
        self._edges = 0
        self._empties = Empties()
        self._emptied = False

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
        named = self.level >= LEVEL_MEMBERS
        self._room(8 * len(requests) + MOST_INTRODUCTIONS * EDGE_BYTES + _SLACK)
        serials = self._book.introduced(requests, at_ns=at_ns, most=MOST_INTRODUCTIONS)
        pairs = array("I", bytes(8 * len(serials)))
        pairs[0::2], pairs[1::2] = serials, array("I", tokens)
        ready = NULL64 if ready_at_ns is None else ready_at_ns
        fields = (0 if named else NO_MEMBERS, at_ns, ready, len(serials))
        body = DELIVERED.struct.pack(DELIVERED.kind, *fields)
        self._writer.append(body + pairs.tobytes() if named else body)

    def scheduled(self, batch: object, decision: Decision) -> None:
        """schedule() returned `batch`. Without members it counts into EMPTY instead."""
        if decision.decodes or decision.prefill or decision.dummy:
            self.decided(batch, decision)
            return
        if self._due:
            self._catch_up(decision.at_ns)
        self._emptied = True
        if self._empties.count(at_ns=decision.at_ns, schedule_ns=decision.schedule_ns):
            self._write_empties(decision.at_ns)

    def decided(self, batch: object, decision: Decision) -> None:
        """The same of a batch that will complete, whether or not it has members.

        The usual decision, to go on with all members of the last one, calls nothing but the writer.
        """
        # all fields at once: reading 18 of a NamedTuple one by one takes 0.7 us longer
        (
            at_ns,
            schedule_ns,
            prefill_tokens,
            decode_tokens,
            running,
            waiting,
            decodes,
            prefill,
            drafts,
            deferred,
            budget_tokens,
            draft_tokens,
            head,
            stop,
            kv_total,
            kv_used,
            kv_evictable,
            dummy,
        ) = decision
        if self._due:
            self._catch_up(at_ns)
        if self._emptied:
            self._write_empties(at_ns)
        writer, known = self._writer, self._decodes
        usual = (
            decodes == known.settled
            and not (prefill or drafts)
            and head is None
            and writer.segment == self._segment
            and writer.left > _SLACK
        )
        if usual:
            flags, tail, self._head = SAME_DECODES, _rows(deferred) if deferred else b"", 0
        else:
            flags, tail = self._tail(decision)
        iteration = writer.iteration_id
        body = _NUMBERED_SCHEDULED(
            writer.seq,
            SCHEDULED.kind,
            flags | DUMMY if dummy else flags,
            iteration,
            at_ns,
            schedule_ns,
            self.observer_ns,
            budget_tokens,
            prefill_tokens,
            decode_tokens,
            draft_tokens,
            running,
            waiting,
            self._head,
            kv_total,
            kv_used,
            kv_evictable,
            len(decodes),
            len(prefill),
            len(drafts),
            len(deferred),
            stop,
        )
        writer.publish(body + tail if tail else body)
        writer.iteration_id = iteration + 1
        self._newest = self._in_flight[id(batch)] = iteration
        if len(self._in_flight) > IN_FLIGHT:
            del self._in_flight[next(iter(self._in_flight))]
        if not usual:
            known.tell(named=not flags & NO_MEMBERS)

    def completed(
        self,
        batch: object,
        *,
        at_ns: int,
        emitted: Sequence[tuple[Any, int]] = (),
        forward_ns: int = NULL64,
        padded_tokens: int = NULL32,
        graph_mode: int = 0,
    ) -> None:
        """The output of `batch` arrived; a batch that we did not see scheduled leaves no record.

        `emitted` are (request, tokens) of all members that did not emit exactly one token, zeros
        too.
        """
        iteration = self._in_flight.pop(id(batch), None)
        if iteration is not None:
            writer, n, kind = self._writer, len(emitted), COMPLETED.kind
            facts = (kind, 0, iteration, at_ns, forward_ns, padded_tokens, n, graph_mode)
            if n or writer.left < _COMPLETED_BYTES:
                writer.append(COMPLETED.struct.pack(*facts) + self._pairs(emitted))
            else:
                writer.publish(_NUMBERED_COMPLETED(writer.seq, *facts))
            self.completed_ns = at_ns
            if iteration > self._settled:
                self._settled = iteration
            if self.departed:
                self._settle(iteration)
        self.holding = False
        if self._held:
            self.release()

    def in_flight(self, batch: object) -> int:
        """The iteration of a batch between schedule and update, 0 for one that we did not see."""
        return self._in_flight.get(id(batch), 0)

    def release(self) -> None:
        """End of `holding`: write what was held back."""
        self.holding = False
        if self._held:
            held, self._held = self._held, []
            for write in held:
                write()

    def notice(
        self, kind: NoticeKind, text: str, *, at_ns: int, seam: str = "", count: int = 1
    ) -> None:
        """Something about the adapter that the operator should read."""
        raw = clipped(text, NOTICE_BYTES)
        self._room(EDGE_BYTES)
        fields = (at_ns, count, self._labels.number(seam), len(raw), _NOTICE[kind])
        self._writer.append(NOTICE.struct.pack(NOTICE.kind, 0, *fields) + raw)

    def bye(self, *, at_ns: int) -> None:
        """We stop looking: the fate of every request is unknown, its serial never used again."""
        self.release()
        if self._emptied:
            self._write_empties(at_ns)
        self._writer.append(BYE.struct.pack(BYE.kind, 0, at_ns))
        self._book.clear()
        self._in_flight.clear()
        self.departed.clear()
        self._decodes.forget()
        self.observer_ns = NULL64

    def distrust(self) -> None:
        """After a fault of ours: a record may be missing, so take nothing announced for granted."""
        self.holding = False
        self._book.forget()
        self._decodes.forget()

    def set_level(self, level: int) -> None:
        """Name members or only count them, from the next record on."""
        self.level = level
        self._decodes.forget()

    def _room(self, nbytes: int) -> bool:
        """Have so many bytes free in one segment; True when it is a new one: it stands alone."""
        self._writer.reserve(nbytes)
        if self._writer.segment == self._segment:
            return False
        self._segment = self._writer.segment
        self._book.forget()
        self._decodes.new_segment()
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
        self._decodes.drop(serial)
        if self._newest > self._settled and len(self.departed) < DEPARTED:
            self.departed[self._ids((request,))[0]] = self._newest

    def _skipping(self, record: Any, request: Any, at_ns: int, reason: int) -> None:
        self._edges += 1
        self._due = True
        if self._edges > EDGES_PER_STEP:
            self.dropped += 1
        else:
            serial = self._known(request, at_ns)
            self._writer.append(record.struct.pack(record.kind, 0, at_ns, serial, reason))

    def _catch_up(self, at_ns: int) -> None:
        """Before a decision: what was held back, what was left out."""
        self._due = False
        self._edges = 0
        self.release()
        if self.dropped > self._dropped_said:
            self._dropped_said = self.dropped
            self.notice(NoticeKind.DROPPED, "edges left out", at_ns=at_ns, count=self.dropped)

    def _settle(self, iteration: int) -> None:
        self.departed = {r: k for r, k in self.departed.items() if k > iteration}

    def _pairs(self, emitted: Sequence[tuple[Any, int]]) -> bytes:
        return b"".join([_PAIR_ROW.pack(self._book.serial_of(r), n) for r, n in emitted])

    def _write_empties(self, at_ns: int) -> None:
        self._emptied = False
        self._room(EDGE_BYTES)
        self._writer.append(self._empties.record(at_ns=at_ns))

    def _tail(self, d: Decision) -> tuple[int, bytes]:
        """Flags and tails. Whoever is named has been introduced to the segment before, a long list
        of decodes over the next iterations.
        """
        requests, prefill, drafts, deferred = d.decodes, d.prefill, d.drafts, d.deferred
        tails = 4 * len(requests) + 12 * len(prefill) + 8 * (len(drafts) + len(deferred))
        self._room(tails + _SLACK)
        head = d.head
        self._head = 0 if head is None else self._book.known(head, at_ns=d.at_ns)
        rows = _rows(deferred)
        if self.level < LEVEL_MEMBERS or tails > self._largest_tails:
            return NO_MEMBERS, rows
        decodes = self._decodes
        if requests != decodes.requests:
            decodes.follow(requests)
        if prefill or drafts or decodes.introduced < len(requests):
            named = self._introduced(d)
            if self._room(tails + _FRAMED_BYTES):  # so many were new that they filled the segment
                named = self._introduced(d)
        else:
            named = b""
        if decodes.told:
            return SAME_DECODES, rows + named
        return 0, b"".join((rows, decodes.serials.tobytes(), named))

    def _introduced(self, d: Decision) -> bytes:
        """Rows of the members that are named anyway; LIVE for some decodes still unknown."""
        known, at_ns = self._book.known, d.at_ns
        self._head = 0 if d.head is None else known(d.head, at_ns=at_ns)
        rows = [_PREFILL_ROW.pack(known(r, at_ns=at_ns), start, n) for r, start, n in d.prefill]
        rows += [_PAIR_ROW.pack(known(r, at_ns=at_ns), n) for r, n in d.drafts]
        most = min(MOST_INTRODUCTIONS, max(2, len(d.decodes) // 100))
        self._decodes.introduce(at_ns=at_ns, most=most)
        return b"".join(rows)


def _rows(deferred: Sequence[tuple[int, int, int]]) -> bytes:
    return b"".join([_DEFERRED_ROW.pack(*row) for row in deferred])
