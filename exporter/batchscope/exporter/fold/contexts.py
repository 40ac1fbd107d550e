"""How many KV tokens each request holds, step by step; which steps are stale or recompute.

A step is stale when its request was preempted while the batch was in flight: whatever comes of it
belongs to the admission before, and leaves the context alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchscope.exporter.fold.layout import (
    FAR,
    NULL,
    Bools,
    Ints,
    differences,
    extended,
    indices_of,
)
from batchscope.exporter.fold.steps import PREEMPT, Steps
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r


@dataclass
class Contexts:
    """Per entry of Steps: KV tokens before and after it (NULL: unknown), and what kind it is.

    `admission`: 0 the first, n after the n-th preemption. Entries with times > 1 grow by
    `emitted` in each.
    """

    before: Ints
    after: Ints
    stale: Bools
    recompute: Bools
    admission: Ints


def first_preemptions(work: Work) -> Ints:
    """Per request: id of the decision that first took its place, FAR: none did."""
    out = np.where(work.rows["first_preempt"] == NULL, FAR, work.rows["first_preempt"])
    part = work.piece.of(r.PREEMPTED)
    if part is not None:
        which, actor = work.concerned(part.fields["serial"], part.pos)
        np.minimum.at(out, actor, work.next_id(part.pos[which]))
    return out


def contexts_of(work: Work, steps: Steps) -> Contexts:
    """Contexts of all entries."""
    stale, admission = _staleness(work, steps)
    recompute = np.zeros(len(steps), bool)
    prefill = indices_of(steps.kind == 1)
    first = first_preemptions(work)
    recompute[prefill] = steps.first[prefill] >= first[steps.actor[prefill]]
    before, after = _chain(work, steps, stale)
    if stale.any():
        _stale_contexts(work, steps, stale, before)
    return Contexts(before, after, stale, recompute, admission)


def _staleness(work: Work, steps: Steps) -> tuple[Bools, Ints]:
    """(stale, admission) of each entry."""
    n = len(steps)
    rows = work.rows
    if not n:
        return np.zeros(0, bool), np.zeros(0, np.int64)
    oldest = int(steps.first.min())
    preempts = steps.edges[steps.kind[steps.edges] == PREEMPT]
    if not len(preempts) and not (rows["preempt_id"] > oldest).any():
        again = np.ascontiguousarray(rows["admission"])
        return np.zeros(n, bool), again[steps.actor] if again.any() else np.zeros(n, np.int64)
    latest = _latest_preemption(work, steps, preempts)
    stale = (steps.first < latest) & (steps.kind < PREEMPT)
    seen = np.cumsum(steps.kind == PREEMPT)
    begun = np.repeat(seen[steps.heads] - (steps.kind[steps.heads] == PREEMPT), _sizes(steps))
    return stale, rows["admission"][steps.actor] + seen - begun - stale


def _latest_preemption(work: Work, steps: Steps, preempts: Ints) -> Ints:
    """Decision that last took the place of the entry's request, NULL: none did."""
    source = np.zeros(len(steps), np.int64)
    source[steps.heads] = steps.heads
    source[preempts] = preempts
    source = np.maximum.accumulate(source)
    inside = steps.kind[source] == PREEMPT
    return np.where(inside, steps.first[source], work.rows["preempt_id"][steps.actor])


def _sizes(steps: Steps) -> Ints:
    return differences(extended(steps.heads, len(steps)))


def _chain(work: Work, steps: Steps, stale: Bools) -> tuple[Ints, Ints]:
    """Contexts before and after: an anchor says what it is, a decode step adds what it emitted."""
    step = np.where((steps.kind == 0) & ~stale, steps.emitted * steps.times, 0)
    total = step.cumsum()
    anchor = (steps.kind > 0) & ~stale
    value = np.where(steps.kind == 1, steps.start + steps.tokens, steps.start)
    base = np.where(anchor, value - total, 0)
    source = np.zeros(len(steps), np.int64)
    source[anchor] = indices_of(anchor)
    plain = steps.heads[~anchor[steps.heads]]
    entry = _entry(work, steps, steps.heads)
    base[plain] = (entry - (total - step)[steps.heads])[~anchor[steps.heads]]
    source[plain] = plain
    source = np.maximum.accumulate(source)
    after = base[source] + total
    before = after - step
    known = np.ones(len(steps), bool)
    known[plain] = entry[~anchor[steps.heads]] != NULL
    after = np.where(known[source], after, NULL)
    before = np.where(known[source], before, NULL)
    _before_anchors(steps, anchor, entry, before=before, after=after)
    return before, after


def _entry(work: Work, steps: Steps, heads: Ints) -> Ints:
    """Context at the begin of the piece.

    A request whose first step ever is a decode had its prompt computed elsewhere.
    """
    rows, who = work.rows, steps.actor[heads]
    context = rows["ctx"][who]
    elsewhere = (steps.kind[heads] == 0) & (rows["steps"][who] == 0) & (context == 0)
    elsewhere &= rows["preemptions"][who] == 0
    return np.where(elsewhere, rows["prompt"][who], context)


def _before_anchors(steps: Steps, anchor: Bools, entry: Ints, *, before: Ints, after: Ints) -> None:
    """An anchor's own "before" is the "after" of the entry before it."""
    at = indices_of(anchor)
    before[at] = np.where(at > 0, after[at - 1], 0)
    heads = np.zeros(len(steps), bool)
    heads[steps.heads] = True
    of_heads = np.zeros(len(steps), np.int64)
    of_heads[steps.heads] = entry
    first = at[heads[at]]
    before[first] = of_heads[first]


def _stale_contexts(work: Work, steps: Steps, stale: Bools, before: Ints) -> None:
    """A stale step ran on the context that its request had when it was preempted."""
    preempts = steps.kind == PREEMPT
    marks = np.where(preempts, np.arange(len(steps)), -1)
    heads = np.zeros(len(steps), np.int64)
    heads[steps.heads] = steps.heads
    latest = np.maximum.accumulate(marks)
    inside = latest >= np.maximum.accumulate(heads)
    held = np.where(inside, before[latest], work.rows["stale_ctx"][steps.actor])
    which = stale & (steps.kind == 0)
    before[which] = held[which]
    at = indices_of(stale & (steps.kind == 1))
    before[at] = steps.start[at]


def keep(work: Work, steps: Steps, found: Contexts) -> None:
    """Write contexts and admissions back into the roll."""
    rows = work.rows
    lasts = steps.lasts
    rows["ctx"][steps.actor[lasts]] = found.after[lasts]
    preempts = steps.edges[steps.kind[steps.edges] == PREEMPT]
    actor = steps.actor[preempts]
    rows["stale_ctx"][actor] = found.before[preempts]
    rows["preempt_id"][actor] = steps.first[preempts]
    np.add.at(rows["preemptions"], actor, 1)
    np.add.at(rows["admission"], actor, 1)
    first = first_preemptions(work)
    rows["first_preempt"] = np.where(first == FAR, NULL, first)
