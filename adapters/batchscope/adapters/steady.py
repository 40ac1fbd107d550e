"""An iteration in which nothing changes, told without a call: what a busy engine does most.

Between two of our hooks a real engine evicts our code and data from the caches. There a call in
Python takes 2 to 4 us, so these two functions do all by themselves; what they write is what
`Recorder.decided` and `Recorder.completed` would, framed as `RingWriter.append` does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from zlib import crc32

from batchscope.adapters.edges import SLACK, Edges
from batchscope.adapters.facts import Pool, Queue, Row, Traits
from batchscope.adapters.naming import Naming
from batchscope.schemas.records import (
    COMPLETED,
    NO_MEMBERS,
    NULL32,
    NULL64,
    SAME_DECODES,
    SCHEDULED,
)
from batchscope.schemas.ring import LEVEL_MEMBERS, RingWriter, framed
from batchscope.schemas.ring.layout import POSITION_WORD, SEQ_WORD, WORD

IN_FLIGHT = 64
"""Batches between schedule and update that are remembered; far more than any engine pipelines."""

_DEFERRED_ROW = Struct("<IHH")
_NUMBERED_SCHEDULED = Struct(f"<Q{SCHEDULED.struct.format[1:]}").pack
_NUMBERED_COMPLETED = Struct(f"<Q{COMPLETED.struct.format[1:]}").pack
"""With the ring's seq in front."""
_WORD, _WORD_BYTES = WORD.pack, WORD.size
_COMPLETED_BYTES = framed(COMPLETED.struct.size)


class Steady(Edges):
    """Tells that a batch went on and that it came back.

    `observer_ns` is set by the hooks: our own time on this thread for the iteration before.
    """

    def __init__(self, writer: RingWriter, traits: Traits, *, naming: Naming, level: int) -> None:
        super().__init__(writer, traits, naming=naming, level=level)
        self.observer_ns = NULL64
        self.completed_ns = 0
        self._head = 0
        self._in_flight: dict[int, int] = {}
        self._emptied = False

    def went_on(
        self,
        batch: object,
        n: int,
        at_ns: int,
        schedule_ns: int,
        budget_tokens: int,
        queue: Queue,
        pool: Pool,
    ) -> bool:
        """The usual decision: `n` members decode one token each, and they are `decodes.settled` or,
        where members aren't named, any. False, and nothing is written, where more is to be said:
        use `decided`.
        """
        writer = self._writer
        if writer.segment != self._segment or writer.left <= SLACK or self._due or self._emptied:
            return False
        waiting, stop, head, deferred = queue
        total, used, evictable = pool
        self._head = 0 if head is None else self._book.known(head, at_ns=at_ns)
        iteration, seq, at = writer.iteration_id, writer.seq, writer.at
        numbered = _NUMBERED_SCHEDULED(
            seq,
            SCHEDULED.kind,
            SAME_DECODES if self.level >= LEVEL_MEMBERS else NO_MEMBERS,
            iteration,
            at_ns,
            schedule_ns,
            self.observer_ns,
            budget_tokens,
            0,
            n,
            0,
            n,
            waiting,
            self._head,
            total,
            used,
            evictable,
            n,
            0,
            0,
            len(deferred),
            stop,
        )
        if deferred:
            numbered += deferred_rows(deferred)
        length = _WORD_BYTES + len(numbered)
        room = (length + 7) & -8
        writer.map[at : at + length] = _WORD(length, crc32(numbered, writer.seed)) + numbered
        writer.at = at = at + room
        writer.left -= room
        writer.seq = seq = seq + 1
        writer.words[POSITION_WORD] = at + writer.lap_bytes
        writer.words[SEQ_WORD] = seq
        writer.iteration_id = iteration + 1
        self._newest = self._in_flight[id(batch)] = iteration
        if len(self._in_flight) > IN_FLIGHT:
            del self._in_flight[next(iter(self._in_flight))]
        return True

    def came_back(self, batch: object, at_ns: int) -> bool:
        """The usual output: one token of each member, nothing known of the launch, and nobody left.
        False, and nothing is written, where that isn't so: use `completed`.
        """
        key, writer = id(batch), self._writer
        iteration = self._in_flight.get(key)
        if iteration is None or writer.left < _COMPLETED_BYTES or self.departed or self._held:
            return False
        seq, at, null = writer.seq, writer.at, NULL64
        numbered = _NUMBERED_COMPLETED(seq, COMPLETED.kind, 0, iteration, at_ns, null, NULL32, 0, 0)
        length = _WORD_BYTES + len(numbered)
        room = (length + 7) & -8
        writer.map[at : at + length] = _WORD(length, crc32(numbered, writer.seed)) + numbered
        writer.at = at = at + room
        writer.left -= room
        writer.seq = seq = seq + 1
        writer.words[POSITION_WORD] = at + writer.lap_bytes
        writer.words[SEQ_WORD] = seq
        del self._in_flight[key]
        self.completed_ns = at_ns
        if iteration > self._settled:
            self._settled = iteration
        self.holding = False
        return True


def deferred_rows(deferred: Sequence[Row]) -> bytes:
    """The tail `deferred` of SCHEDULED."""
    return b"".join([_DEFERRED_ROW.pack(*row) for row in deferred])
