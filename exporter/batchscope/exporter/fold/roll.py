"""The requests of a piece: those that live, that arrive in it, that turn up unannounced.

A serial is never reused, so within a piece a request has at most one birth and one end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from batchscope.exporter.fold.layout import (
    NULL,
    Bools,
    Ints,
    Rows,
    among,
    first_of_each,
    live_rows,
    stacked,
)
from batchscope.exporter.fold.pieces import Part
from batchscope.schemas import records as r

_TABLE_LIMIT = 1 << 22
"""Widest range of serials that gets a lookup table (16 MB); beyond it they are searched for."""


class Roll:
    """Rows of requests, given and kept in order of serial; `find` maps serials to their indices."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.serials: Ints = np.ascontiguousarray(self.rows["serial"])
        self._table = _lookup(self.serials)

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, serials: npt.NDArray[np.integer]) -> Ints:
        """Index of each serial, -1 where there is none."""
        if not len(self.serials):
            return np.full(len(serials), -1, np.int64)
        if self._table is None:
            return self._search(serials.astype(np.int64))
        at = serials.astype(np.int64)
        at -= self.serials[0]
        np.maximum(at, -1, out=at)
        np.minimum(at, len(self._table) - 2, out=at)
        return self._table[at]

    def _search(self, serials: Ints) -> Ints:
        at = self.serials.searchsorted(serials)
        hit = self.serials[np.minimum(at, len(self.serials) - 1)] == serials
        return np.where(hit, at, -1)

    def joined(self, more: Rows) -> Roll:
        """A roll with more rows."""
        if not len(more):
            return self
        rows = stacked([self.rows, more])
        serials = rows["serial"]
        ascends = np.count_nonzero(serials[1:] > serials[:-1]) == len(serials) - 1
        return Roll(rows if ascends else rows.take(serials.argsort(kind="stable")))


def _lookup(serials: Ints) -> Ints | None:
    """Serial - first -> index, with one -1 at either end for what lies outside."""
    if not len(serials) or serials[-1] - serials[0] >= _TABLE_LIMIT:
        return None
    table = np.full(int(serials[-1] - serials[0]) + 3, -1, np.int64)
    table[serials - serials[0]] = np.arange(len(serials))
    return table


def announced(part: Part) -> Rows:
    """Rows of ARRIVED or LIVE records, as at birth."""
    rows = live_rows(len(part))
    for name in ("trace_hi", "trace_lo", "model", "lora", "tenant", "serial"):
        rows[name] = part.wide(name)
    rows["parent"] = part.wide("parent_span")
    for name, field, code in (
        ("key", "key", "Q"),
        ("external", "external_key", "Q"),
        ("max_tokens", "max_tokens", "I"),
        ("priority", "priority", "i"),
    ):
        rows[name] = part.wide(field, r.NULL[code])
    rows["prompt"] = rows["target"] = part.wide("prompt_tokens")
    rows["named"] = 1
    return rows


def unannounced(serials: Ints) -> Rows:
    """Rows of requests whose announcement was lost: what follows of them is partial."""
    rows = live_rows(len(serials))
    rows["serial"] = serials
    rows["broken"] = 1
    for name in ("first_ok", "out_known", "gaps_ok"):
        rows[name] = 0
    rows["ctx"] = NULL
    return rows


def fresh(serials: Ints, known: Roll, gone: Ints) -> Bools:
    """Which serials are new: a request that is queued twice arrives once."""
    return np.asarray(first_of_each(serials) & (known.find(serials) < 0) & ~among(serials, gone))
