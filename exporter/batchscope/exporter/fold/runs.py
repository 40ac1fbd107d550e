"""Runs: consecutive identical steps of one request as one row.

A run ends where phase, tokens, context or the distance between its iterations change; its row is
cut every 4,096 steps. Only decode steps of several tokens may emit unevenly within a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchscope.exporter.fold.contexts import Contexts
from batchscope.exporter.fold.layout import (
    FAR,
    NULL,
    RUN_STEPS,
    Bools,
    Ints,
    Rows,
    extended,
    heads_of,
    indices_of,
    lasts_of,
    steps_between,
)
from batchscope.exporter.fold.run_rows import (
    KEPT,
    RUN,
    UNEVEN,
    Tails,
    close,
    keep_tails,
    tails_of,
    write,
)
from batchscope.exporter.fold.steps import PREEMPT, Steps
from batchscope.exporter.fold.work import Work

PREFILL, DECODE = 1, 2
"""Wire codes of Phase."""


@dataclass
class Groups:
    """Steps of one run within the piece: entries `first` to `last` of Steps (edges in between don't
    count), `total` steps; `goes_on`: they continue the request's open run; `gap`, `second_gap`:
    distance of iterations before its first and second entry.
    """

    first: Ints
    last: Ints
    total: Ints
    goes_on: Bools
    gap: Ints
    second_gap: Ints
    earlier_e: Ints
    """Tokens that each step of the open run emitted."""
    follower: Ints
    """Position of the step that begins the request's next run, FAR: none here."""
    bounds: tuple[Ints, Ints, Ints]
    """(entries that are steps, first, last + 1 of each group in them)"""


def runs(work: Work, steps: Steps, contexts: Contexts) -> None:
    """Write the runs that end in this piece; the open ones stay in the roll."""
    tails = tails_of(work)
    done: list[Rows] = []
    texts: list[npt.NDArray[np.int64] | None] = []
    at = indices_of(steps.kind < PREEMPT)
    if len(at):
        groups = _groups(work, steps, contexts, at)
        found = _rows(work, steps, contexts, groups)
        _replace(work, steps, groups, tails=tails, done=done, texts=texts)
        _settle(work, steps, groups, found, tails=tails, done=done, texts=texts)
        _keep_last(work, steps, at)
    close(work, np.sort(work.leavers), work.ends, tails=tails, done=done, texts=texts)
    write(work, done, texts)
    keep_tails(work, tails)


def _groups(work: Work, steps: Steps, contexts: Contexts, at: Ints) -> Groups:
    rows, actor = work.rows, steps.actor[at]
    head = heads_of(actor)
    gap = steps_between(steps.first[at])
    gap[1:] -= steps.times[at][:-1] - 1
    gap[head] = steps.first[at][head] - rows["last_step"][actor[head]]
    begins = _begins(work, steps, at, head=head, gap=gap, hard=_differs(work, steps, contexts, at))
    first = indices_of(begins | head)
    end = extended(first[1:], len(at))
    same = extended(actor[first[1:]] == actor[first[:-1]], 0)
    following = extended(steps.pos[at[first[1:]]], FAR)
    second = np.minimum(first + 1, len(at) - 1)
    return Groups(
        first=at[first],
        last=at[end - 1],
        total=np.add.reduceat(steps.times[at], first),
        goes_on=~begins[first],
        gap=gap[first],
        second_gap=np.where(end - first > 1, gap[second], 0),
        earlier_e=rows["run_e"][actor[first]],
        follower=np.where(same, following, FAR),
        bounds=(at, first, end),
    )


def _differs(work: Work, steps: Steps, contexts: Contexts, at: Ints) -> Bools:
    """Which steps can't continue the run before them, whatever their distance."""
    rows, actor = work.rows, steps.actor[at]
    heads = indices_of(heads_of(actor))
    phase = np.where(steps.kind[at] == 1, PREFILL, DECODE)
    tokens, emitted = steps.tokens[at], steps.emitted[at]
    start, who = steps.start[at], actor[heads]
    ends = rows["run_ctx"][who] + rows["run_n"][who] * rows["run_tokens"][who]
    out = _changed(phase, rows["run_phase"][who], heads)
    out |= _changed(tokens, rows["run_tokens"][who], heads)
    out |= _changed(contexts.recompute[at].astype(np.int64), rows["run_recompute"][who], heads)
    out |= _changed(contexts.admission[at], rows["run_admission"][who], heads)
    out |= _changed(emitted, rows["run_e"][who], heads) & ((phase == PREFILL) | (tokens == 1))
    prefill = indices_of(phase == PREFILL)
    expected = np.concatenate([[0], (start + tokens)[:-1]])
    expected[heads] = ends
    out[prefill] |= start[prefill] != expected[prefill]
    return out


def _changed(values: Ints, before: Ints, heads: Ints) -> Bools:
    """Where a column differs from the entry before, at the heads from what the roll says."""
    out = np.empty(len(values), bool)
    out[1:] = values[1:] != values[:-1]
    out[heads] = values[heads] != before
    return out


def _begins(work: Work, steps: Steps, at: Ints, *, head: Bools, gap: Ints, hard: Bools) -> Bools:
    """Which steps begin a run.

    A run takes its stride from its second step; after that another distance ends it. So of
    successive changes of distance every other one begins a run: parity since the last sure step.
    """
    many = steps.times[at] > 1
    heads = indices_of(head)
    changed = np.empty(len(at), bool)
    changed[1:] = gap[1:] != gap[:-1]
    stride = work.rows["run_stride"][steps.actor[at[heads]]]
    changed[heads] = (stride != 0) & (gap[heads] != stride)
    sure = hard | head | ~changed
    sure[1:] |= many[:-1]
    index = np.arange(len(at))
    latest = np.maximum.accumulate(np.where(sure, index, 0))
    begun = (hard | changed)[latest]
    return ((index - latest + begun) & 1).astype(bool)


def _rows(work: Work, steps: Steps, contexts: Contexts, groups: Groups) -> Rows:
    """One run per group, what the roll has of it included."""
    first, rows = groups.first, work.rows
    out = np.zeros(len(first), RUN)
    out["actor"] = actor = steps.actor[first]
    prefill = steps.kind[first] == 1
    grows = groups.goes_on & (rows["run_n"][actor] > 0)
    context = np.where(prefill, steps.start[first], contexts.before[first])
    final = steps.j[groups.last] + steps.times[groups.last] - 1
    out["pos"] = groups.follower
    out["first"] = np.where(grows, rows["run_first"][actor], steps.first[first])
    out["n"] = groups.total + np.where(grows, rows["run_n"][actor], 0)
    out["stride"] = _strides(work, steps, groups)
    out["phase"] = np.where(prefill, PREFILL, DECODE)
    out["recompute"], out["tokens"] = contexts.recompute[first], steps.tokens[first]
    out["e"] = _evenness(work, steps, groups, grows)
    out["ctx"] = np.where(grows, rows["run_ctx"][actor], context)
    out["unix"] = work.completions.unix[final]
    out["admission"] = contexts.admission[first]
    return out


def _strides(work: Work, steps: Steps, groups: Groups) -> Ints:
    """Distance of the iterations, 0 while there is but one step."""
    known = np.where(groups.goes_on, work.rows["run_stride"][steps.actor[groups.first]], 0)
    told = np.where(groups.goes_on, groups.gap, groups.second_gap)
    own = np.where(~groups.goes_on & (steps.times[groups.first] > 1), 1, told)
    return np.where(known != 0, known, own)


def _evenness(work: Work, steps: Steps, groups: Groups, grows: Bools) -> Ints:
    """Tokens emitted in each step, or UNEVEN."""
    emitted = steps.emitted[groups.first]
    uneven = np.zeros(len(emitted), bool)
    several = (steps.tokens[groups.first] > 1) & (steps.kind[groups.first] == 0)
    if several.any():
        at, first, _ = groups.bounds
        low = np.minimum.reduceat(steps.emitted[at], first)
        high = np.maximum.reduceat(steps.emitted[at], first)
        before = work.rows["run_e"][steps.actor[groups.first]]
        uneven = several & ((low != high) | (grows & (before != low)))
    return np.where(uneven, UNEVEN, emitted)


def _settle(
    work: Work,
    steps: Steps,
    groups: Groups,
    found: Rows,
    *,
    tails: Tails,
    done: list[Rows],
    texts: list[npt.NDArray[np.int64] | None],
) -> None:
    """Ended runs to `done`, open ones to the roll; the long and the uneven ones one by one."""
    special = (found["n"] >= RUN_STEPS) | (found["e"] == UNEVEN)
    plain = found.compress(~special)
    ended = plain.compress(plain["pos"] < FAR)
    done.append(ended)
    texts.extend([None] * len(ended))
    _to_roll(work, plain.compress(plain["pos"] == FAR))
    for i in indices_of(special).tolist():
        _settle_one(
            work, steps, groups, found[i : i + 1].copy(), i, tails=tails, done=done, texts=texts
        )


def _settle_one(
    work: Work,
    steps: Steps,
    groups: Groups,
    run: Rows,
    i: int,
    *,
    tails: Tails,
    done: list[Rows],
    texts: list[npt.NDArray[np.int64] | None],
) -> None:
    """Cut one run every 4,096 steps and keep what remains."""
    at, first, end = groups.bounds
    entries = at[first[i] : end[i]]
    actor, n = int(run["actor"][0]), int(run["n"][0])
    before = n - int(groups.total[i])
    emitted = _emitted(steps, run, entries, np.full(before, groups.earlier_e[i]), tails)
    upto = steps.times[entries].cumsum()
    stride, close = int(run["stride"][0]), int(run["pos"][0])
    for begin in range(0, n, RUN_STEPS):
        part = run.copy()
        part["n"] = size = min(RUN_STEPS, n - begin)
        part["first"] += begin * stride
        part["ctx"] = _grown(run, emitted, begin)
        own = emitted[begin : begin + size]
        part["e"] = own[0] if (own == own[0]).all() else UNEVEN
        if size == RUN_STEPS:
            j = _step_at(steps, entries, upto, begin + size - before)
            part["unix"], part["pos"] = work.completions.unix[j], work.completions.pos[j]
        if size == RUN_STEPS or close < FAR:
            done.append(part)
            texts.append(own if part["e"] == UNEVEN else None)
            continue
        _to_roll(work, part)
        if part["e"] == UNEVEN:
            tails[actor] = [own]
    if n % RUN_STEPS == 0 and close == FAR:
        _to_roll(work, _emptied(run, emitted))


def _emptied(run: Rows, emitted: Ints) -> Rows:
    """A run that goes on behind a cut, without a step yet."""
    out = run.copy()
    several = (run["tokens"] > 1) & (run["phase"] == DECODE)
    out["ctx"] = _grown(run, emitted, len(emitted))
    out["n"], out["first"] = 0, NULL
    out["e"] = np.where(several, 0, emitted[-1])
    return out


def _emitted(steps: Steps, run: Rows, entries: Ints, before: Ints, tails: Tails) -> Ints:
    """Tokens of every step of the run; `before` are the steps of earlier pieces, if even."""
    earlier = tails.pop(int(run["actor"][0]), [before])
    own = steps.emitted[entries].repeat(steps.times[entries])
    return np.concatenate([*earlier, own]) if len(before) else own


def _grown(run: Rows, emitted: Ints, steps: int) -> int:
    """Context after so many steps of the run, NULL when it is unknown at its begin."""
    start = int(run["ctx"][0])
    if run["phase"][0] == PREFILL:
        return start + steps * int(run["tokens"][0])
    return start if start == NULL else start + int(emitted[:steps].sum())


def _step_at(steps: Steps, entries: Ints, upto: Ints, number: int) -> int:
    """Completion of the number-th step (from 1) of some entries."""
    e = int(upto.searchsorted(number))
    return int(steps.j[entries[e]] + steps.times[entries[e]] - 1 - (upto[e] - number))


def _to_roll(work: Work, open_runs: Rows) -> None:
    for name in KEPT:
        work.rows[f"run_{name}"][open_runs["actor"]] = open_runs[name]


def _replace(
    work: Work,
    steps: Steps,
    groups: Groups,
    *,
    tails: Tails,
    done: list[Rows],
    texts: list[npt.NDArray[np.int64] | None],
) -> None:
    """End the open runs that another run follows."""
    actors = steps.actor[groups.first]
    follows = (heads_of(actors)) & ~groups.goes_on
    ends = np.full(len(work.rows), FAR, np.int64)
    ends[actors[follows]] = steps.pos[groups.first[follows]]
    close(work, actors[follows], ends, tails=tails, done=done, texts=texts)


def _keep_last(work: Work, steps: Steps, at: Ints) -> None:
    last = at[indices_of(lasts_of(steps.actor[at]))]
    work.rows["last_step"][steps.actor[last]] = steps.first[last] + steps.times[last] - 1
