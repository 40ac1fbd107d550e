"""Request-seconds under decisions that left requests out.

A decision says how many it left out and why; that lasts to the next decision, or until one of them
ends (an engine that idles for an hour defers nobody). So that it adds up to the rows of `waits`.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.layout import NULL, REASONS, Ints, differences, extended, indices_of
from batchscope.exporter.fold.queue_sums import Spans, Sums, left_at
from batchscope.exporter.fold.skips import Skips
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, words

_REASONS = words(DeferralReason)


def count_deferred(work: Work, sums: Sums, spans: Spans, skips: Skips) -> None:
    """Count the decisions that left requests out, and their time up to the last one or to an end.

    Who ends is taken out only while its decision's count lasts: an engine may tell fewer.
    """
    told = _told(work)
    if not told.any():
        return
    spent = np.where(sums.d[:-1] == NULL, 0, np.maximum(differences(sums.d), 0))
    ns = (told[:-1] * spent[:, None]).sum(axis=0)
    decisions = told[1:].sum(axis=0)
    index, reason, at = _left(work, sums, spans, skips)
    mine = _nth(index * REASONS + reason) < told[index, reason]
    index, reason, at = index[mine], reason[mine], at[mine]
    stayed = np.maximum(at - sums.d[index], 0)
    np.add.at(ns, reason, stayed - extended(spent, 0)[index])
    np.subtract.at(told, (index, reason), 1)
    work.state.deferred = told[-1].copy()
    for code in indices_of(decisions + ns != 0).tolist():
        label = str(_REASONS[code] or DeferralReason.UNKNOWN)
        work.state.totals.count("deferrals", int(decisions[code]), label)
        work.state.totals.count("deferred_seconds", int(ns[code]), label)


def _told(work: Work) -> Ints:
    """Requests left out, by reason: row 0 is of the decision before the piece, then each one's."""
    out = np.zeros((len(work.decisions) + 1, REASONS), np.int64)
    out[0] = work.state.deferred
    part = work.piece.of(r.SCHEDULED)
    if part is not None and part.fields["n_deferred"].any():
        offsets, rows = part.tail("deferred")
        owner = np.repeat(np.arange(len(part)), differences(offsets))
        np.add.at(out, (owner + 1, rows["reason"].astype(np.int64)), rows["requests"])
    return out


def _left(work: Work, sums: Sums, spans: Spans, skips: Skips) -> tuple[Ints, Ints, Ints]:
    """(decision behind it, reason it waited for, instant) of each end of a waiter, in order."""
    which = indices_of(spans.gone & spans.counted)
    which = which[np.argsort(work.ends[spans.actor[which]])]
    index = spans.end[which]
    passed = [skips.leaving.get(span, 0) for span in which.tolist()]
    over = np.array(passed, np.int64)
    reason = np.where(over > 0, over, sums.stop[index])
    return index, reason, left_at(work)[spans.actor[which]]


def _nth(keys: Ints) -> Ints:
    """How many equal ones come before each."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    out = np.empty(len(keys), np.int64)
    out[order] = np.arange(len(keys)) - ranked.searchsorted(ranked)
    return out
