"""The steps of folding one piece of a front end's ring: who is there, what each was handed.

No batches in it: who arrived, DELIVERED, who left. Called by ring.py instead of sequence.py.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold import deliveries, edges
from batchscope.exporter.fold.layout import FAR, Ints, Rows
from batchscope.exporter.fold.pieces import Piece, nothing
from batchscope.exporter.fold.sequence import begin, judge_seqs, tell_time
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.work import Table, Work
from batchscope.schemas import records as r
from batchscope.schemas.slo import Slo


def fold_piece(
    state: State, piece: Piece, *, slo: Slo | None, block: int | None
) -> dict[str, list[Table]]:
    """Take a piece into the state; returns its final rows."""
    work = begin(state, piece, slo=slo, block=block)
    work.rows["first_ok"] &= (work.births < 0) | (work.rows["out"] == 0)
    judge_seqs(work)
    edges.strings(work)
    edges.notices(work)
    handed = deliveries.of_roll(work)
    work.ends = np.full(len(work.roll), FAR, np.int64)
    lost, bye = piece.of(r.LOSS), piece.of(r.BYE)
    if lost is not None:
        edges.losses(work, lost)
        _doubt(work, handed)
    elif bye is not None:
        at = int(bye.fields["at_ns"][0])
        unix = at + int(work.offsets.at(bye.pos)[0])
        _end(work, handed, np.arange(len(work.roll)), at=at, unix=unix)
    else:
        deliveries.take(work, handed)
        deliveries.finish(work, handed)
    return _kept(work, handed)


def fold_end(state: State, *, slo: Slo | None, block: int | None) -> dict[str, list[Table]]:
    """Nothing will follow and no BYE says so."""
    work = begin(state, nothing(), slo=slo, block=block)
    handed = deliveries.of_roll(work)
    _end(work, handed, np.arange(len(work.roll)), at=state.at, unix=state.unix)
    return _kept(work, handed)


def _doubt(work: Work, handed: Rows) -> None:
    """A loss: who was not heard of since the one before has left; of the others some is unknown."""
    state, rows = work.state, work.rows
    _end(work, handed, np.flatnonzero(rows["suspect"] == 1), at=state.at, unix=state.unix)
    rows["suspect"] = 1
    deliveries.miss(rows, handed)


def _end(work: Work, handed: Rows, leavers: Ints, *, at: int, unix: int) -> None:
    """End requests whose own end nobody saw."""
    work.leavers = leavers
    work.rows["broken"][leavers] = 1
    deliveries.end_unknown(work, handed, at=at, unix=unix)


def _kept(work: Work, handed: Rows) -> dict[str, list[Table]]:
    stays = np.ones(len(work.roll), bool)
    stays[work.leavers] = False
    work.state.live, work.state.deliveries = work.rows[stays], handed[stays]
    tell_time(work)
    work.out.pop("_arrivals", None)  # the core's arrival is the one that spans begin with
    return work.out
