"""From facts to records: iterations, on top of single facts. The same under every adapter.

Called by the hooks, all on one thread: that of the engine's steps, or of a front end's outputs.
Keeps no engine object but the decode members of the last decision, and those only until one of them
leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from batchscope.adapters.edges import EDGE_BYTES, MOST_INTRODUCTIONS, SLACK
from batchscope.adapters.empties import Empties
from batchscope.adapters.facts import Decision, Traits
from batchscope.adapters.naming import Naming
from batchscope.adapters.steady import IN_FLIGHT, Steady, deferred_rows
from batchscope.schemas.reasons import NoticeKind
from batchscope.schemas.records import (
    BYE,
    COMPLETED,
    DUMMY,
    NO_MEMBERS,
    NULL32,
    NULL64,
    SAME_DECODES,
    SCHEDULED,
)
from batchscope.schemas.ring import LEVEL_MEMBERS, RingWriter, framed

_PREFILL_ROW = Struct("<3I")
_PAIR_ROW = Struct("<2I")
_FRAMED_BYTES = framed(SCHEDULED.struct.size) + 8


class Recorder(Steady):
    """Writes what the translations say."""

    def __init__(self, writer: RingWriter, traits: Traits, *, naming: Naming, level: int) -> None:
        super().__init__(writer, traits, naming=naming, level=level)
        self._largest_tails = writer.largest - _FRAMED_BYTES
        self._dropped_said = 0
        self._empties = Empties()

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
        """The same of a batch that will complete, whether or not it has members."""
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
            _,
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
        writer = self._writer
        flags, tail = self._tail(decision)
        iteration = writer.iteration_id
        body = SCHEDULED.struct.pack(
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
        writer.append(body + tail)
        writer.iteration_id = iteration + 1
        self._newest = self._in_flight[id(batch)] = iteration
        if len(self._in_flight) > IN_FLIGHT:
            del self._in_flight[next(iter(self._in_flight))]
        self.decodes.tell(named=not flags & NO_MEMBERS)

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
            facts = (iteration, at_ns, forward_ns, padded_tokens, len(emitted), graph_mode)
            body = COMPLETED.struct.pack(COMPLETED.kind, 0, *facts)
            self._writer.append(body + self._pairs(emitted))
            self.completed_ns = at_ns
            self._settled = max(iteration, self._settled)
            if self.departed:
                self._settle(iteration)
        self.holding = False
        if self._held:
            self.release()

    def in_flight(self, batch: object) -> int:
        """The iteration of a batch between schedule and update, 0 for one that we did not see."""
        return self._in_flight.get(id(batch), 0)

    def bye(self, *, at_ns: int) -> None:
        """We stop looking: the fate of every request is unknown, its serial never used again."""
        self.release()
        if self._emptied:
            self._write_empties(at_ns)
        self._writer.append(BYE.struct.pack(BYE.kind, 0, at_ns))
        self._book.clear()
        self._in_flight.clear()
        self.departed.clear()
        self.decodes.forget()
        self.observer_ns = NULL64

    def distrust(self) -> None:
        """After a fault of ours: a record may be missing, so take nothing announced for granted."""
        self.holding = False
        self._book.forget()
        self.decodes.forget()

    def set_level(self, level: int) -> None:
        """Name members or only count them, from the next record on."""
        self.level = level
        self.decodes.forget()

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
        self._room(tails + SLACK)
        head = d.head
        self._head = 0 if head is None else self._book.known(head, at_ns=d.at_ns)
        rows = deferred_rows(deferred)
        if self.level < LEVEL_MEMBERS or tails > self._largest_tails:
            return NO_MEMBERS, rows
        decodes = self.decodes
        if requests != decodes.requests:
            decodes.follow(requests)
        if prefill or drafts or decodes.introduced < len(requests):
            named = self._introduced(d)
            if self._room(tails + _FRAMED_BYTES):  # so many were new that they filled the segment
                named = self._introduced(d)
                self._room(tails + _FRAMED_BYTES)  # more than one takes: the ones before know them
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
        self.decodes.introduce(at_ns=at_ns, most=most)
        return b"".join(rows)
