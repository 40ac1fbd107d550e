"""One piece under way: what its steps hand to each other. Made and driven by ring.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.exporter.clock import Offsets
from batchscope.exporter.fold.layout import DRAFTS, PREFILL, Bools, Ints, Rows, indices_of
from batchscope.exporter.fold.pieces import Piece
from batchscope.exporter.fold.roll import Roll
from batchscope.exporter.fold.state import State
from batchscope.schemas.slo import Slo

Table = dict[str, Any]


def none() -> Ints:
    """No numbers."""
    return np.empty(0, np.int64)


@dataclass
class Decisions:
    """SCHEDULED records of the piece, n of them, and where they stand in the flight table."""

    pos: Ints = field(default_factory=none)
    at: Ints = field(default_factory=none)
    ids: Ints = field(default_factory=none)
    stop: Ints = field(default_factory=none)
    rows: Ints = field(default_factory=none)

    def __len__(self) -> int:
        return len(self.pos)

    def after(self, pos: Ints) -> Ints:
        """Index of the first decision behind each position, n: none in this piece."""
        return self.pos.searchsorted(pos)


@dataclass
class Completions:
    """COMPLETED records with a batch in flight, n of them in order; `rows` into the flight table.

    `plain`: the interval is known, is the distance to the completion before, and nothing in it
    was idle.
    """

    pos: Ints = field(default_factory=none)
    c: Ints = field(default_factory=none)
    unix: Ints = field(default_factory=none)
    rows: Ints = field(default_factory=none)
    record: Ints = field(default_factory=none)
    plain: Bools = field(default_factory=lambda: np.empty(0, bool))

    def __len__(self) -> int:
        return len(self.pos)


@dataclass
class Work:
    """State of the piece: `roll` rows and `flight` rows are copies that become the next state."""

    state: State
    piece: Piece
    offsets: Offsets
    slo: Slo | None
    block_tokens: int | None
    roll: Roll
    births: Ints
    """Per request of the roll: position of its ARRIVED or LIVE, -1 before the piece."""
    flight: Rows
    out: dict[str, list[Table]] = field(default_factory=dict)
    ends: Ints = field(default_factory=none)
    """Per request of the roll: position of its FINISHED, FAR: it goes on."""
    finished: Ints = field(default_factory=none)
    """Rows of FINISHED that end a request, and (same order) `leavers`, whose."""
    leavers: Ints = field(default_factory=none)
    decisions: Decisions = field(default_factory=Decisions)
    completions: Completions = field(default_factory=Completions)
    set_offsets: Ints = field(default_factory=none)
    set_serials: Ints = field(default_factory=none)
    set_actors: Ints = field(default_factory=none)
    """Where in the roll they are, -1: gone."""
    prefill: Rows = field(default_factory=lambda: np.zeros(0, PREFILL))
    prefill_actors: Ints = field(default_factory=none)
    drafts: Rows = field(default_factory=lambda: np.zeros(0, DRAFTS))
    next_ids: tuple[Ints, Ints] = field(default_factory=lambda: (none(), none()))
    gaps: list[Rows] = field(default_factory=list)
    history: Ints = field(default_factory=none)

    @property
    def rows(self) -> Rows:
        """The roll's rows."""
        return self.roll.rows

    def emit(self, table: str, **columns: Any) -> None:
        """Final rows of a table."""
        self.out.setdefault(table, []).append(columns)

    def concerned(self, serials: npt.NDArray[np.integer], pos: Ints) -> tuple[Ints, Ints]:
        """(indices of the records at `pos` that are about a request that lives then, whose)."""
        actor = self.roll.find(serials)
        known = indices_of(actor >= 0)
        who, at = actor[known], pos[known]
        lives = (at > self.births[who]) & (at < self.ends[who])
        return known[lives], who[lives]

    def happened_between(self, first: int, last: int) -> bool:
        """Whether a decision or a completion lies between two positions."""
        pos = np.concatenate([self.decisions.pos, self.completions.pos])
        return bool(((pos > first) & (pos < last)).any())

    def next_id(self, pos: Ints) -> Ints:
        """Id of the next decision at each position."""
        at, ids = self.next_ids
        return ids[at.searchsorted(pos)]
