"""What a break in the record leaves: a LOSS, a BYE, batches whose members were left out.

Figures that would need what was missed stay unknown from here on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batchscope.exporter.fold import layout
from batchscope.exporter.fold.layout import NULL, REASONS, Rows, indices_of
from batchscope.exporter.fold.run_rows import state_columns
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.work import Work

_UNKNOWN = ("ctx", "stale_ctx", "last_token", "last_k", "last_c", "last_emit", "last_step", "span")
_NO_LONGER = ("first_ok", "out_known", "gaps_ok", "wait", "resumed", "crossed")
_RUN = ("run_n", "run_stride", "run_phase", "run_recompute", "run_tokens", "run_e")


def forget_requests(state: State) -> dict[str, Any] | None:
    """Every live request may have done anything meanwhile. Returns the runs that this ends."""
    ended = state_columns(state)
    _blur(state.live)
    state.gaps, state.emitted = state.gaps[:0], state.emitted[:0]
    state.skips = state.skips[:0]
    state.blocked.clear()
    state.ending.clear()
    return ended if len(ended["serial"]) else None


def _blur(rows: Rows) -> None:
    rows["broken"] = 1
    for name in (*_UNKNOWN, "run_first", "run_ctx", "run_unix", "wait_since"):
        rows[name] = NULL
    for name in (*_NO_LONGER, *_RUN, "wait_n", "wait_t"):
        rows[name] = 0
    rows["run_admission"] = 0


def forget_axis(state: State) -> None:
    """Nothing links the next completion, decision or instant with the last one."""
    state.c = state.mark = state.d = NULL
    state.idle, state.synced, state.last_set = 0, False, -1
    state.deferred = np.zeros(REASONS, np.int64)
    state.flight["judged"] = 0


def hide(work: Work) -> None:
    """In a stretch without members: whoever was there at some decision may have been in it."""
    happened = np.sort(np.concatenate([work.decisions.pos, work.completions.pos]))
    since = np.maximum(work.births, work.piece.lo - 1)
    seen = happened.searchsorted(since, side="right") < happened.searchsorted(work.ends)
    which = indices_of(seen)
    rows = work.rows.take(which)
    _blur(rows)
    work.roll.rows[which] = rows


def suspect(state: State) -> None:
    """After a loss: who is not heard of again may have finished in it."""
    state.live["suspect"] = 1
    state.check_id, state.check_step = 0, layout.IN_FLIGHT
