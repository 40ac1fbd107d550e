"""Cuts a chunk where knowledge breaks off, so that within a piece all of it is arithmetic.

A piece boundary changes no result; what breaks knowledge is a LOSS, a BYE, batches whose members
were left out, and a LIVE that tells what was lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.exporter.fold.layout import (
    FAR,
    NULL,
    Bools,
    Ints,
    Rows,
    extended,
    heads_of,
    indices_of,
    steps_between,
)
from batchscope.exporter.fold.state import State
from batchscope.exporter.tail import Chunk, Columns, chunk_of
from batchscope.schemas import records as r

MEMBER_STEPS = 1 << 17
"""Most member steps of one piece: bounds the memory of a fold to about 100 MB."""
_AROUND_LIVE = (r.LIVE.kind, r.STRING.kind, r.SEGMENT.kind, r.PAD.kind, r.ARRIVED.kind)


@dataclass(frozen=True)
class Part:
    """The records of one kind in a piece: `pos` in the chunk, `fields`, and tails."""

    pos: Ints
    fields: Rows
    _columns: Columns
    _first: int
    _cache: dict[tuple[int, str], Any]

    def __len__(self) -> int:
        return len(self.pos)

    def wide(self, name: str, null: int | None = None) -> Ints:
        """A field as int64, its NULL turned into ours."""
        out = self.fields[name].astype(np.int64)
        if null is not None:
            out[self.fields[name] == null] = NULL
        return out

    def tail(self, name: str) -> tuple[Ints, Rows]:
        """(offsets [n + 1], rows) of a tail."""
        key = (id(self._columns), name)
        if key not in self._cache:
            self._cache[key] = self._columns.tail(name)
        offsets, rows = self._cache[key]
        mine = offsets[self._first : self._first + len(self.pos) + 1]
        return mine - mine[0], rows[mine[0] : mine[-1]]


@dataclass(frozen=True)
class Piece:
    """Records lo to hi of a chunk."""

    chunk: Chunk
    lo: int
    hi: int
    hidden: bool
    _cache: dict[tuple[int, str], Any]
    _parts: dict[int, Part | None] = field(default_factory=dict)

    def of(self, record: r.Record) -> Part | None:
        """Its records of one kind, None without any."""
        if record.kind not in self._parts:
            self._parts[record.kind] = self._part(record)
        return self._parts[record.kind]

    def _part(self, record: r.Record) -> Part | None:
        columns = self.chunk.of(record)
        if columns is None:
            return None
        first, last = columns.index.searchsorted((self.lo, self.hi)).tolist()
        if first == last:
            return None
        return Part(
            columns.index[first:last], columns.fields[first:last], columns, first, self._cache
        )


def nothing() -> Piece:
    """A piece without records."""
    return Piece(chunk_of([]), 0, 0, hidden=False, _cache={})


class Cutter:
    """Hands out the pieces of one chunk in order; each is cut by what the state says by then."""

    def __init__(self, chunk: Chunk, state: State) -> None:
        self._chunk, self._state = chunk, state
        self._at = 0
        self._cache: dict[tuple[int, str], Any] = {}
        self._hidden = _hidden_spans(chunk, state)
        self._cuts = self._static_cuts()

    def __iter__(self) -> Cutter:
        return self

    def __next__(self) -> Piece:
        if self._at >= len(self._chunk):
            raise StopIteration
        lo, hi = self._at, min(self._next_static(), self._checkpoint())
        self._at = hi
        first, last = self._hidden
        hidden = bool(((first <= lo) & (lo < last)).any())
        return Piece(self._chunk, lo, hi, hidden, self._cache)

    def _next_static(self) -> int:
        after = self._cuts.searchsorted(self._at, side="right")
        return int(self._cuts[after]) if after < len(self._cuts) else len(self._chunk)

    def _checkpoint(self) -> int:
        """Behind the decision at which requests missing since a loss are looked for."""
        scheduled = self._chunk.of(r.SCHEDULED)
        if self._state.check_id == NULL or scheduled is None:
            return FAR
        due = scheduled.fields["iteration_id"].astype(np.int64) >= self._state.check_id
        later = scheduled.index[due & (scheduled.index >= self._at)]
        return int(later[0]) + 1 if len(later) else FAR

    def _static_cuts(self) -> Ints:
        chunk = self._chunk
        cuts = [*self._hidden, *_blind_spans(chunk), _by_size(chunk)]
        breaks = [c.index for rec in (r.LOSS, r.BYE) if (c := chunk.of(rec)) is not None]
        cuts += [edge for index in breaks for edge in (index, index + 1)]
        if breaks or len(self._hidden[0]) or _tells_news(chunk, self._state):
            cuts.append(_live_groups(chunk))
        return np.unique(np.concatenate(cuts))


def _by_size(chunk: Chunk) -> Ints:
    columns = chunk.of(r.SCHEDULED)
    if columns is None:
        return np.empty(0, np.int64)
    members = columns.fields["n_decode"].astype(np.int64) + columns.fields["n_prefill"]
    full = members.cumsum() // MEMBER_STEPS
    return np.asarray(columns.index[indices_of(steps_between(full))])


def _tells_news(chunk: Chunk, state: State) -> bool:
    """Whether some LIVE is about a request that isn't wholly known."""
    columns = chunk.of(r.LIVE)
    if columns is None:
        return False
    rows = state.live
    whole = rows["serial"][~needs_telling(rows)]
    arrived = chunk.of(r.ARRIVED)
    born = [] if arrived is None else [arrived.fields["serial"].astype(np.int64)]
    return not np.isin(columns.fields["serial"], np.concatenate([whole, *born])).all()


def needs_telling(rows: Rows) -> Bools:
    """Which live requests a LIVE has news about."""
    return np.asarray((rows["named"] == 0) | (rows["out_known"] == 0) | (rows["ctx"] == NULL))


def _live_groups(chunk: Chunk) -> Ints:
    """First of each row of LIVE that only announcements lie between."""
    columns = chunk.of(r.LIVE)
    if columns is None:
        return np.empty(0, np.int64)
    others = np.cumsum(~np.isin(chunk.kind, _AROUND_LIVE))
    at = others[columns.index]
    return np.asarray(columns.index[heads_of(at)])


def _hidden_spans(chunk: Chunk, state: State) -> tuple[Ints, Ints]:
    """[first, last) of each row of decisions and completions whose members were left out."""
    scheduled, completed = chunk.of(r.SCHEDULED), chunk.of(r.COMPLETED)
    ids, hides = state.flight["iteration_id"], hides_members(state.flight["flags"])
    pos, veiled = [np.empty(0, np.int64)], [np.empty(0, bool)]
    if scheduled is not None:
        mine = hides_members(flags_of(scheduled.fields["flags"], last_set=state.last_set))
        ids = np.concatenate([ids, scheduled.fields["iteration_id"].astype(np.int64)])
        hides = np.concatenate([hides, mine])
        pos, veiled = [*pos, scheduled.index], [*veiled, mine]
    if not hides.any():
        return pos[0], pos[0]
    if completed is not None:
        done = completed.fields["iteration_id"].astype(np.int64)
        pos, veiled = [*pos, completed.index], [*veiled, np.isin(done, ids[hides])]
    for record in (r.LIVE, r.LOSS, r.BYE):  # what is told ends a stretch
        if (told := chunk.of(record)) is not None:
            pos, veiled = [*pos, told.index], [*veiled, np.zeros(len(told.index), bool)]
    return _stretches(np.concatenate(pos), np.concatenate(veiled))


def _blind_spans(chunk: Chunk) -> tuple[Ints, Ints]:
    """[first, last) of each row of deliveries that name nobody."""
    delivered = chunk.of(r.DELIVERED)
    blind = None if delivered is None else delivered.fields["flags"] & r.NO_MEMBERS != 0
    if delivered is None or blind is None or not blind.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    pos, veiled = [delivered.index], [blind]
    for record in (r.ARRIVED, r.LIVE, r.FINISHED, r.LOSS, r.BYE):  # whoever comes or goes ends one
        if (told := chunk.of(record)) is not None:
            pos, veiled = [*pos, told.index], [*veiled, np.zeros(len(told.index), bool)]
    return _stretches(np.concatenate(pos), np.concatenate(veiled))


def hides_members(flags: Ints) -> Bools:
    """Whether a batch has members that nobody knows."""
    return np.asarray((flags & (r.NO_MEMBERS | r.DUMMY)) == r.NO_MEMBERS)


def flags_of(flags: npt.NDArray[np.uint16], *, last_set: int) -> Ints:
    """Flags of successive decisions; "same as before" where before is unknown is NO_MEMBERS."""
    out = flags.astype(np.int64)
    source = sources(out)
    unknown = np.where(source >= 0, out[source] & r.NO_MEMBERS != 0, last_set < 0)
    out[unknown & (out & r.SAME_DECODES != 0)] |= r.NO_MEMBERS
    return out


def sources(flags: Ints) -> Ints:
    """Index of the latest decision that names its decode members, -1: before these."""
    own = indices_of(flags & r.SAME_DECODES == 0)
    return extended(own, -1)[own.searchsorted(np.arange(len(flags)), side="right") - 1]


def _stretches(pos: Ints, veiled: Any) -> tuple[Ints, Ints]:
    order = np.argsort(pos)
    pos, veiled = pos[order], veiled[order]
    edges = np.diff(veiled.astype(np.int8), prepend=0, append=0)
    starts, ends = indices_of(edges == 1), indices_of(edges == -1)
    return pos[starts], pos[ends - 1] + 1
