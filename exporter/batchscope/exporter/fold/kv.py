"""KV tokens held and token slots wasted, summed over requests, at every completion.

Waste of a request is ceil(context / B) * B - context: from contexts, not from blocks used, which
goes negative where prefixes are shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from batchscope.exporter.fold.contexts import Contexts
from batchscope.exporter.fold.layout import FAR, NULL, Ints, indices_of, spread
from batchscope.exporter.fold.steps import Steps
from batchscope.exporter.fold.work import Work


@dataclass(frozen=True)
class Changes:
    """What becomes of requests at completions number `where`: from `before` to `after`."""

    where: Ints
    before: Any
    after: Any

    def of(self, figure: Callable[[Any], Any]) -> Changes:
        """The same changes of a figure of each."""
        return Changes(self.where, figure(self.before), figure(self.after))


def held(work: Work, steps: Steps, contexts: Contexts) -> None:
    """Fill context and waste of the completed batches: NULL while some context is unknown.

    Called before the contexts are written back: the roll still says what was held at the begin.
    """
    done = work.completions
    n = len(done)
    if not n:
        return
    before, after = _first_step(work, steps, contexts)
    where = _next_completion(work, steps.pos)
    left = indices_of(work.ends < FAR)
    at_end = _final(work, steps, contexts)[left]
    gone = done.pos.searchsorted(work.ends[left], side="right")
    newly = indices_of(work.births >= 0)
    born = done.pos.searchsorted(work.births[newly])
    start = work.rows["ctx"].copy()
    if work.piece.hidden:  # what is told in between is out of date with the next batch
        start[:] = at_end[:] = before[:] = after[:] = NULL
    old = start[work.births < 0]
    changes = Changes(
        np.concatenate([where, gone, born]),
        np.concatenate([before, at_end, np.zeros(len(newly), np.int64)]),
        np.concatenate([after, np.zeros(len(left), np.int64), start[newly]]),
    )
    clear = _unknown(n, old, changes) == 0
    clear &= not work.piece.hidden  # nobody announced isn't nobody there
    old, changes = _known(old), changes.of(_known)
    context = _summed(n, old.sum(), changes)
    _grow(context, steps, before)
    rows = done.rows
    work.flight["context"][rows] = np.where(clear, context, NULL)
    if work.block_tokens:
        size = work.block_tokens
        waste = _summed(n, _waste(old, size).sum(), changes.of(partial(_waste, size=size)))
        _waste_of_blocks(waste, steps, before, size)
        work.flight["waste"][rows] = np.where(clear, waste, NULL)


def _first_step(work: Work, steps: Steps, contexts: Contexts) -> tuple[Ints, Ints]:
    """What the first completion of each entry changes; entries with more are grown after it."""
    before, after = contexts.before.copy(), contexts.after.copy()
    stale = indices_of(contexts.stale)
    before[stale] = after[stale]
    elsewhere = indices_of((steps.kind == 0) & ~contexts.stale)
    heads = np.zeros(len(steps), bool)
    heads[steps.heads] = True
    first = elsewhere[heads[elsewhere]]
    before[first] = work.rows["ctx"][steps.actor[first]]
    many = indices_of(steps.times > 1)
    known = after[many] != NULL
    after[many] = np.where(known, contexts.before[many] + steps.emitted[many], NULL)
    return before, after


def _next_completion(work: Work, pos: Ints) -> Ints:
    return work.completions.pos.searchsorted(pos)


def _final(work: Work, steps: Steps, contexts: Contexts) -> Ints:
    """Context of each request at the end of the piece."""
    out = work.rows["ctx"].copy()
    lasts = steps.lasts if len(steps) else steps.heads
    out[steps.actor[lasts]] = contexts.after[lasts]
    return out


def _known(contexts: Ints) -> Ints:
    return np.maximum(contexts, 0)  # NULL is the least number


def _waste(contexts: Ints, size: int) -> Ints:
    if size & (size - 1) == 0:  # a twentieth of the time of a remainder
        return -contexts & (size - 1)
    return -contexts % size


def _unknown(n: int, old: Ints, changes: Changes) -> Ints:
    """How many contexts are unknown at each of n completions."""
    missing = int(np.count_nonzero(old == NULL))
    blind = changes.of(lambda contexts: contexts == NULL)
    if not missing and not blind.before.any() and not blind.after.any():
        return np.zeros(n, np.int64)
    return _summed(n, missing, blind.of(lambda those: those.astype(np.int64)))


def _summed(n: int, base: int, changes: Changes) -> Ints:
    """A sum over requests at each of n completions."""
    change = changes.after - changes.before
    steps = np.bincount(changes.where, change, n + 1)[:n].astype(np.int64)
    return int(base) + steps.cumsum()


def _grow(context: Ints, steps: Steps, before: Ints) -> None:
    """One token more per member and completion, in the blocks of identical completions."""
    starts, times = steps.blocks
    growing = (steps.times > 1) & (before != NULL)
    members = np.bincount(steps.j[growing], minlength=len(context)).astype(np.int64)
    more = times - 1
    growth = np.zeros(len(context) + 1, np.int64)
    growth[spread(starts + 1, more)] = members[starts].repeat(more)
    context += growth.cumsum()[:-1]


def _waste_of_blocks(waste: Ints, steps: Steps, before: Ints, size: int) -> None:
    """The same for waste: it falls by one per token and jumps back when a new block begins.

    Members count by context modulo the block size, so a block of completions costs size x size.
    """
    starts, times = steps.blocks
    many = indices_of(steps.times > 1)
    if not len(many):
        return
    number = np.full(len(waste), -1, np.int64)
    number[starts] = np.arange(len(starts))
    known = before[many] != NULL
    slot = number[steps.j[many]] * size + before[many] % size
    counts = np.bincount(slot[known], minlength=len(starts) * size).reshape(len(starts), size)
    ages = np.arange(size)
    wasted = counts @ (-(ages[:, None] + ages[None, :] + 1) % size)
    more = times - 1
    block = np.repeat(np.arange(len(starts)), more)
    age = spread(np.ones(len(starts), np.int64), more)
    change = wasted[block, age % size] - wasted[block, (age - 1) % size]
    growth = np.zeros(len(waste) + 1, np.int64)
    growth[spread(starts + 1, more)] = change
    waste += growth.cumsum()[:-1]
