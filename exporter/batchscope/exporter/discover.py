"""The rings of a folder: which there are, which can't be read and why, one of them being followed.

Used by the pipeline's tail thread alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchscope.exporter import facts, pending
from batchscope.exporter.fold import FOLD_VERSION, RingFold
from batchscope.exporter.pending import Rows
from batchscope.exporter.standing import Standing
from batchscope.exporter.store import RingState
from batchscope.exporter.tail import Chunk, chunk_from
from batchscope.exporter.views import EngineView, view
from batchscope.schemas.reasons import Role
from batchscope.schemas.records import ARRIVED, BYE, DELIVERED, LIVE, SCHEDULED
from batchscope.schemas.ring import RingError, RingReader, list_rings
from batchscope.schemas.slo import Slo

_ITERATION = struct.Struct("<q")
"""Precedes the fold's dump in a blob: the id of the next SCHEDULED, -1 unknown. It makes a loss
while no exporter runs exact in iterations, too."""


_SIGNS_OF_LIFE = (ARRIVED, LIVE, SCHEDULED, DELIVERED)
"""Who comes counts, too: if the engine dies before it decides anything, someone was there."""
HURRY = 8
"""A poll that returns more than this part of a ring is followed by the next one at once."""


@dataclass
class Followed:
    """One ring: its reader, its fold, and what waits for the store.

    state: live, closed (said goodbye) or dead (lock gone without goodbye). hurried: it fills fast.
    """

    reader: RingReader
    fold: RingFold
    state: str = "live"
    ended_unix_ns: int | None = None
    rows: list[Rows] = field(default_factory=list)
    marks: list[facts.Row] = field(default_factory=list)
    nbytes: int = 0
    dirty: bool = True
    committed: tuple[int, int] | None = None
    hurried: bool = False
    standing: Standing = field(default_factory=Standing)
    view: EngineView = field(init=False)

    def __post_init__(self) -> None:
        self.publish()
        self._size = self.reader.path.stat().st_size

    @property
    def hello(self) -> dict[str, Any]:
        """What the adapter said at attach."""
        return self.reader.hello

    @property
    def ring_id(self) -> int:
        """Key of this ring in every table."""
        return self.reader.ring_id

    @property
    def engine(self) -> str:
        """Stable name of the engine."""
        return str(self.hello.get("engine") or "unknown")

    @property
    def is_front_end(self) -> bool:
        """Whether it is the ring of an API server, which has no batches."""
        return bool(self.hello.get("role") == Role.FRONTEND.value)

    def read(self) -> Rows | None:
        """Poll once and fold what came; None when nothing did."""
        before = self.reader.position[1]
        raw = self.reader.poll()
        if raw is None:
            self.hurried = False
            return None
        seq, byte_pos = self.reader.position
        self.hurried = raw.is_loss or byte_pos - before > self._size // HURRY
        chunk = chunk_from(raw, self.ring_id, self.reader.ring_uuid, seq=seq, byte_pos=byte_pos)
        rows = self.fold.fold(chunk)
        self.keep(rows)
        self._note_life(chunk)
        self.dirty = True
        return rows

    def _note_life(self, chunk: Chunk) -> None:
        """A goodbye that nothing follows is the end; work after one: it was attached again."""
        found, bye = [chunk.of(kind) for kind in _SIGNS_OF_LIFE], chunk.of(BYE)
        if self.state == "closed" and (signs := [one for one in found if one is not None]):
            self.state, self.ended_unix_ns = "live", None
            first = min(signs, key=lambda one: int(one.index[0]))
            at = self._unix_ns(int(first.fields["at_ns"][0]))
            self.marks.append(facts.mark("attach", "again", unix_ns=at, engine=self.engine))
        if bye is not None and int(chunk.kind[-1]) == BYE.kind:
            self.end("closed", self._unix_ns(int(bye.fields["at_ns"][-1])))

    def _unix_ns(self, at_ns: int) -> int:
        mono_ns, unix_ns = self.reader.clock_pair
        return unix_ns + at_ns - mono_ns

    def keep(self, rows: Rows) -> None:
        """Queue rows for the next commit."""
        self.rows.append(rows)
        self.nbytes += pending.nbytes(rows)

    def end(self, state: str, unix_ns: int) -> None:
        """The engine left. The first end counts; a mark says when it was seen."""
        if self.state != "live":
            return
        self.state, self.ended_unix_ns, self.dirty = state, unix_ns, True
        said = "detached" if state == "closed" else "died without a goodbye"
        self.marks.append(facts.mark(state, said, unix_ns=unix_ns, engine=self.engine))

    def die(self, unix_ns: int) -> Rows:
        """The engine is gone without a goodbye and all is read; final rows of what it left."""
        rows = self.fold.end()
        self.keep(rows)
        self.end("dead", unix_ns)
        return rows

    def publish(self) -> None:
        """Make what a scrape sees, as a copy that later folds don't touch."""
        totals, (decisions, left_out) = self.fold.totals, self.fold.left_out
        totals.counters |= self.standing.shown(
            totals.counters, left_out, decisions=decisions, live=self.state == "live"
        )
        self.view = view(
            self.hello,
            self.ring_id,
            state=self.state,
            totals=totals,
            gauges=dict(self.fold.gauges),
        )

    def ring_state(self) -> RingState:
        """Position and the fold's whole state there."""
        seq, byte_pos = self.reader.position
        blob = packed(self.reader.iteration, self.fold)
        return RingState(self.ring_id, self.reader.ring_uuid, seq, byte_pos, FOLD_VERSION, blob)

    def engine_row(self) -> facts.Row:
        """Its row of the engines table."""
        return facts.engine(
            self.hello, self.ring_id, state=self.state, ended_unix_ns=self.ended_unix_ns
        )


def follow(
    path: Path,
    *,
    states: Mapping[str, RingState],
    ends: Mapping[int, tuple[str, int | None]],
    slo: Slo | None,
) -> Followed:
    """Open a ring where the store left off; `ends` is its stored (state, ended_unix_ns) by ring_id.

    Raises RingError or OSError when it can't be read.
    """
    reader = RingReader(path)
    stored = states.get(reader.ring_uuid)
    if stored is None:
        return _first_seen(reader, slo)
    reader.close()
    iteration, fold = restore(stored, hello=reader.hello, slo=slo)
    at = (stored.seq, stored.byte_pos)
    state, ended = ends.get(stored.ring_id, ("live", None))
    again = RingReader(path, position=at, iteration=iteration)
    return Followed(again, fold, state=state, ended_unix_ns=ended, committed=at, dirty=False)


def packed(iteration: int | None, fold: RingFold) -> bytes:
    """The blob of a stored state, as `restore` reads it."""
    return _ITERATION.pack(-1 if iteration is None else iteration) + fold.dump()


def restore(
    stored: RingState, *, hello: Mapping[str, Any], slo: Slo | None
) -> tuple[int | None, RingFold]:
    """(next iteration id, fold) of a stored state.

    A state of another fold version can't be loaded: a fresh fold goes on from the same position, so
    that nothing is stored twice; requests under way are resolved again at the next segment.
    """
    if stored.fold_version != FOLD_VERSION:
        return None, RingFold(dict(hello), stored.ring_id, slo=slo)
    (iteration,) = _ITERATION.unpack_from(stored.blob)
    fold = RingFold.load(stored.blob[_ITERATION.size :])
    return (None if iteration < 0 else iteration), fold


def _first_seen(reader: RingReader, slo: Slo | None) -> Followed:
    ring = Followed(reader, RingFold(reader.hello, reader.ring_id, slo=slo))
    since = int(ring.hello.get("unix_ns") or 0)
    of = [ring.hello.get("kind"), ring.hello.get("version"), "front end" * ring.is_front_end]
    name = " ".join(str(word) for word in of if word)
    ring.marks.append(facts.mark("attach", name, unix_ns=since, engine=ring.engine))
    return ring


def discover(
    folder: Path, *, known: set[Path], open_ring: Callable[[Path], Followed]
) -> tuple[list[Followed], dict[Path, str]]:
    """(rings that appeared, those that can't be read with the reason in a sentence)."""
    fresh: list[Followed] = []
    refused: dict[Path, str] = {}
    for path in list_rings(folder):
        if path not in known:
            _try(path, open_ring, fresh, refused)
    return fresh, refused


def _try(
    path: Path,
    open_ring: Callable[[Path], Followed],
    fresh: list[Followed],
    refused: dict[Path, str],
) -> None:
    try:
        fresh.append(open_ring(path))
    except FileNotFoundError:
        return  # its engine removed it meanwhile
    except RingError as error:
        refused[path] = str(error)
    except OSError as error:
        refused[path] = f"{path.name}: {error.strerror}"
