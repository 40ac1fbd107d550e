"""Layouts of what the fold remembers: int64 columns throughout, so that a dump is a copy.

NULL is -2**63 in every column. Used by all parts of the fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.schemas.reasons import DeferralReason
from batchscope.schemas.records import NULL64

NULL = NULL64
"""Unknown."""
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.void]
"""Structured rows. Select them by `take` and `compress`, join them by `stacked`: those move bytes
where an index or np.concatenate copies field by field (256 live requests: 15 us against 200)."""

FAR = 2**62
"""A position behind every record."""
REASONS = len(DeferralReason) + 1
"""Slots to index by a reason's wire code."""
RUN_STEPS = 4096
"""Steps after which a run is cut."""
IN_FLIGHT = 64
"""Decisions after which a batch that never came back is given up."""
GAP_WINDOW = 1 << 18
"""Completions that gaps are remembered for; a request that decodes for longer has no quantiles."""

_LIVE = {
    # who it is
    **dict.fromkeys(("serial", "trace_hi", "trace_lo", "parent", "model", "lora", "tenant"), 0),
    **dict.fromkeys(("key", "external", "prompt", "max_tokens", "priority"), NULL),
    # what is known of it: announced; records about it lost; silent since a loss
    **dict.fromkeys(("named", "broken", "suspect"), 0),
    **dict.fromkeys(("first_ok", "out_known", "gaps_ok"), 1),
    # instants; k counts completions
    **dict.fromkeys(("arrived", "arrived_unix", "first_sched", "first_token", "last_token"), NULL),
    **dict.fromkeys(("first_k", "last_k", "last_c", "last_emit", "last_step"), NULL),
    # tokens; ctx = KV tokens computed, stale_ctx = what it was before the last preemption
    **dict.fromkeys(("ctx", "out", "steps", "prefill", "decode", "recomputed", "on_time"), 0),
    "stale_ctx": NULL,
    # admissions: fresh = prefill done in time, due = what the closed admissions had to do
    **dict.fromkeys(("target", "hit", "cached"), NULL),
    **dict.fromkeys(("fresh", "due", "cached_resume", "preemptions", "lost", "crossed"), 0),
    **dict.fromkeys(("first_preempt", "preempt_id"), NULL),
    # the open run; stride 0 = not known yet, e -1 = differs from step to step
    **dict.fromkeys(("run_n", "run_stride", "run_phase", "run_recompute", "run_tokens"), 0),
    **dict.fromkeys(("run_e", "run_admission"), 0),
    **dict.fromkeys(("run_first", "run_ctx", "run_unix"), NULL),
    # k of the first gap of the open stretch of plain gaps
    "span": NULL,
    # waiting: 0 no, 1 no decision yet, 2 counted from wait_n, wait_t
    **dict.fromkeys(("wait", "resumed", "admission", "deferrals"), 0),
    **dict.fromkeys(("wait_since", "in_step"), NULL),
}
_FLIGHT = {
    **dict.fromkeys(("iteration_id", "at", "sched_unix", "schedule_ns", "budget"), NULL),
    **dict.fromkeys(("prefill", "decode", "draft", "running", "waiting", "head", "stop"), 0),
    **dict.fromkeys(("kv_total", "kv_used", "kv_evictable"), NULL),
    **dict.fromkeys(("n_decode", "n_prefill", "flags", "done"), 0),
    **dict.fromkeys(("members", "judged"), -1),
    **dict.fromkeys(("k", "c", "unix", "interval", "host", "exec", "idle", "forward"), NULL),
    **dict.fromkeys(("padded", "output", "gap_members", "decode_ctx", "product"), NULL),
    **dict.fromkeys(("recomputed", "waste", "context", "observer"), NULL),
    "graph": 0,
}


def _dtype(names: tuple[str, ...], *, vectors: tuple[str, ...] = ()) -> np.dtype[np.void]:
    return np.dtype([(n, "<i8") for n in names] + [(n, "<i8", (REASONS,)) for n in vectors])


LIVE = _dtype(tuple(_LIVE), vectors=("wait_n", "wait_t"))
"""A request that arrived and did not finish."""
FLIGHT = _dtype(tuple(_FLIGHT))
"""A batch whose row isn't final: `members` is the number of its decode set, -1 unknown."""
GONE = _dtype(("serial", "until", "ctx", "first_preempt", "named"))
"""A request that finished while batches up to `until` may still hold it."""
PREFILL = _dtype(("iteration_id", "serial", "start", "tokens"))
DRAFTS = _dtype(("iteration_id", "serial", "tokens"))
LINKS = _dtype(("iteration_id", "serial", "link", "tokens"))
GAPS = _dtype(("serial", "kind", "a", "b"))
"""Gaps of live requests: kind 0 = every interval from k = a to b, 1 = a ns and b gaps of 0."""
EMITTED = _dtype(("serial", "tokens"))
"""Tokens of each step of open runs that emit unevenly, in order of steps."""
DELIVERIES = _dtype(
    (
        *("serial", "pieces", "first", "last", "longest"),
        *("first_lag", "lags", "lag_sum", "longest_lag"),
    )
)
"""What a live request of a front end was handed: how often, instants, gaps, lags."""
SKIPS = _dtype(("serial", "reason", "decisions", "ns"))
"""Waits that were passed over, of waits that go on."""


@cache
def _blank(kind: str) -> Rows:
    defaults, dtype = (_LIVE, LIVE) if kind == "live" else (_FLIGHT, FLIGHT)
    row = np.zeros(1, dtype)
    for name, value in defaults.items():
        row[name] = value
    return row


def live_rows(n: int) -> Rows:
    """N requests of whom nothing is known."""
    return np.repeat(_blank("live"), n)


def flight_rows(n: int) -> Rows:
    """N batches of which nothing is known."""
    return np.repeat(_blank("flight"), n)


def table(dtype: np.dtype[np.void], **columns: npt.NDArray[Any]) -> Rows:
    """Rows from columns."""
    rows = np.zeros(len(next(iter(columns.values()))), dtype)
    for name, column in columns.items():
        rows[name] = column
    return rows


def wide(column: npt.NDArray[np.generic], null: int | None = None) -> Ints:
    """A wire column as int64, its own NULL turned into ours."""
    out = column.astype(np.int64)
    if null is not None:
        out[column == null] = NULL
    return out


def stacked(parts: Sequence[Rows]) -> Rows:
    """Rows of several tables of one layout, one after another (np.concatenate: 70 us, this 8)."""
    words = [part.view(np.int64) for part in parts]
    return np.concatenate(words).view(parts[0].dtype)


def extended(values: npt.NDArray[Any], last: Any) -> npt.NDArray[Any]:
    """Values and one more behind them (np.append takes 3x)."""
    out = np.empty(len(values) + 1, values.dtype)
    out[:-1], out[-1] = values, last
    return out


def differences(values: Ints) -> Ints:
    """Of each two neighbours; n + 1 offsets give n sizes (np.diff takes 5x)."""
    return values[1:] - values[:-1]


def first_of_each(values: Ints) -> Bools:
    """Which values are the first of their kind."""
    ascends = np.count_nonzero(values[1:] > values[:-1]) == max(len(values) - 1, 0)
    out = np.full(len(values), ascends)
    if not ascends:
        out[np.unique(values, return_index=True)[1]] = True
    return out


def indices_of(mask: npt.NDArray[Any]) -> Ints:
    """Where a mask holds, or numbers aren't 0 (np.flatnonzero takes 6x)."""
    return mask.nonzero()[0]


def steps_between(values: Ints, first: int = 0) -> Ints:
    """Each value less the one before it, the first one less `first` (np.diff takes 10x)."""
    out = values.copy()
    out[1:] -= values[:-1]
    out[:1] -= first
    return out


def spread(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, ... for each start, as many as its count, one after another."""
    if not len(starts):
        return starts[:0]
    ends = counts.cumsum()
    first: Ints = (starts - ends + counts).repeat(counts)
    return first + np.arange(int(ends[-1]), dtype=np.int64)


def heads_of(values: npt.NDArray[Any]) -> Bools:
    """Where a value differs from the one before it; the first one does (np.diff takes 5x)."""
    out = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def lasts_of(values: npt.NDArray[Any]) -> Bools:
    """Where a value differs from the one behind it; the last one does."""
    out = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=out[:-1])
    return out


def among(values: npt.NDArray[Any], known: npt.ArrayLike) -> Bools:
    """Which values are known ones (np.isin takes 30 us, 25 on nothing)."""
    ordered = np.sort(known)
    if not len(values) or not len(ordered):
        return np.zeros(len(values), bool)
    at = ordered.searchsorted(values)
    at[at == len(ordered)] = 0
    return np.asarray(ordered[at] == values)


def shifted(values: npt.NDArray[Any], heads: Ints, first: npt.ArrayLike) -> npt.NDArray[Any]:
    """Each value's predecessor; at `heads`, where there is none, `first` (one per head)."""
    out = np.empty_like(values)
    out[1:] = values[:-1]
    out[heads] = first
    return out
