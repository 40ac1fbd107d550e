"""What the tail thread hands to the store thread: all that one transaction needs, as a snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from batchscope.exporter import facts, pending, tables
from batchscope.exporter.discover import Followed
from batchscope.exporter.pending import Rows
from batchscope.exporter.store import Commit, RingState

_EMPTY = pa.table({})


@dataclass
class Offer:
    """Rows of some rings and the positions they belong to: taken from the rings, held only here."""

    states: list[RingState] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    open_rows: list[Rows] = field(default_factory=list)
    engines: list[facts.Row] = field(default_factory=list)
    own: dict[str, list[facts.Row]] = field(default_factory=dict)
    taken: list[Followed] = field(default_factory=list)
    nbytes: int = 0

    def take(self, ring: Followed) -> None:
        """Move what a ring has for the store into this offer; nothing is moved when that fails."""
        state, open_rows = ring.ring_state(), ring.fold.open_rows()
        self.taken.append(ring)
        self.states.append(state)
        self.open_rows.append(open_rows)
        self.engines.append(ring.engine_row())
        self.rows += ring.rows
        self.add("marks", ring.marks)
        self.nbytes += ring.nbytes
        ring.rows, ring.marks, ring.nbytes, ring.dirty = [], [], 0, False
        ring.committed = None  # not before this offer is durable may the ring be retired

    def add(self, table: str, rows: list[facts.Row]) -> None:
        """Rows of the store's own tables."""
        if rows:
            self.own[table] = [*self.own.get(table, ()), *rows]

    def commit(self) -> Commit:
        """As a transaction. Costs milliseconds: for the store thread."""
        appended = pending.tables(self.rows)
        appended |= {name: facts.table(name, rows) for name, rows in self.own.items()}
        return Commit(appended, self._replaced(), self.states, [s.ring_id for s in self.states])

    def settle(self) -> None:
        """The transaction is durable: the rings may be retired up to here."""
        for ring, state in zip(self.taken, self.states, strict=True):
            ring.committed = (state.seq, state.byte_pos)

    def _replaced(self) -> dict[str, pa.Table]:
        if not self.states:
            return {}
        rows = pending.tables(self.open_rows)
        open_tables = {name: rows.get(name, _EMPTY) for name in tables.PER_RING}
        return open_tables | {"engines": facts.table("engines", self.engines)}


def take_config(made: Offer, ring: Followed, known: set[str]) -> None:
    """Add the ring's configuration when the store doesn't have it."""
    config = facts.config(ring.hello)
    if config and config["config_hash"] not in known:
        known.add(config["config_hash"])
        made.add("configs", [config])
