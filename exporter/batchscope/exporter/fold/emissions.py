"""Tokens and the gaps between them: what each member step emitted, and when the last one came.

A gap that is exactly one plain interval is counted at the iteration; every other gap is a row.
n tokens at one instant are one gap of the full length and n - 1 gaps of 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchscope.exporter.fold.contexts import Contexts
from batchscope.exporter.fold.layout import (
    GAPS,
    NULL,
    Bools,
    Ints,
    differences,
    extended,
    heads_of,
    indices_of,
    lasts_of,
    shifted,
    spread,
    table,
)
from batchscope.exporter.fold.steps import PREEMPT, Steps
from batchscope.exporter.fold.work import Work

SPAN, SPECIAL = 0, 1


@dataclass
class Emissions:
    """Entries of Steps that emit, m of them (`at`), and the emission before each.

    `previous_k`, `previous_c`, `previous_id`: NULL where none is known. `steady`: the gap is
    exactly the interval. `opens`: this is the request's first token.
    """

    at: Ints
    k: Ints
    previous_k: Ints
    previous_c: Ints
    previous_id: Ints
    out_before: Ints
    crossed: Bools
    steady: Bools
    opens: Bools


def emissions_of(work: Work, steps: Steps) -> Emissions:
    """Link every emission with the one before it."""
    at = indices_of(steps.emitted > 0)
    actor, j = steps.actor[at], steps.j[at]
    done, rows = work.completions, work.rows
    heads = indices_of(heads_of(actor))
    who, first, last = actor[heads], steps.first[at], steps.times[at] - 1
    k = j + (work.state.k - len(done))
    crossed = _crossed(work, steps, at, heads)
    previous_k = shifted(k + last, heads, rows["last_k"][who])
    previous_c = shifted(done.c[j + last], heads, rows["last_c"][who])
    previous_id = shifted(first + last, heads, rows["last_emit"][who])
    counts = differences(extended(heads, len(at)))
    out = np.cumsum(steps.emitted[at] * steps.times[at])
    out_before = shifted(out, heads[:1], 0)
    out_before += np.repeat(rows["out"][who] - out_before[heads], counts)
    steady = (previous_k == k - 1) & (steps.emitted[at] == 1) & done.plain[j] & ~crossed
    opens = np.zeros(len(at), bool)
    maybe = indices_of((previous_c == NULL) & (out_before == 0))
    opens[maybe] = rows["out_known"][actor[maybe]] == 1
    return Emissions(at, k, previous_k, previous_c, previous_id, out_before, crossed, steady, opens)


def _crossed(work: Work, steps: Steps, at: Ints, heads: Ints) -> Bools:
    """Whether a preemption lies between an emission and the one before it."""
    out = np.zeros(len(at), bool)
    out[heads] = work.rows["crossed"][steps.actor[at[heads]]] == 1
    preempts = steps.edges[steps.kind[steps.edges] == PREEMPT]
    behind = at.searchsorted(preempts)
    behind, preempts = behind[behind < len(at)], preempts[behind < len(at)]
    out[behind[steps.actor[at[behind]] == steps.actor[preempts]]] = True
    return out


def gap_rows(work: Work, steps: Steps, found: Emissions) -> Ints:
    """Write gaps; returns, per completion, the tokens whose gap is its interval."""
    odd = ~found.steady & (found.previous_c != NULL)
    burst = found.opens & (steps.emitted[found.at] > 1)
    which = indices_of(odd | burst)
    if len(which):
        _write_gaps(work, steps, found, which, odd=odd, burst=burst)
    _stretches(work, steps, found)
    return _steady_counts(work, steps, found)


def _write_gaps(
    work: Work, steps: Steps, found: Emissions, which: Ints, *, odd: Bools, burst: Bools
) -> None:
    at, done = found.at, work.completions
    j, emitted = steps.j[at], steps.emitted[at]
    raw = done.c[j[which]] - found.previous_c[which]
    length = np.where(burst[which], 0, np.maximum(raw, 0))
    work.state.totals.count("clamped_durations", int((odd[which] & (raw < 0)).sum()))
    tokens = emitted[which] - burst[which]
    first = steps.first[at[which]]
    _remember(work, steps, found, which, length=length, tokens=tokens)
    order = np.lexsort((steps.actor[at[which]], steps.pos[at[which]]))
    work.emit(
        "gaps",
        serial=work.roll.serials[steps.actor[at[which]]][order],
        iteration_id=first[order],
        from_iteration=np.where(burst[which], first, found.previous_id[which])[order],
        gap_ns=length[order],
        tokens=tokens[order],
        preempted=found.crossed[which][order].astype(np.int64),
        unix_ns=done.unix[j[which]][order],
    )
    _observe(work, length, tokens)


def _observe(work: Work, length: Ints, tokens: Ints) -> None:
    values = extended(length, 0)
    weights = extended(np.ones(len(length), np.int64), (tokens - 1).sum())
    work.state.totals.observe("time_between_tokens_seconds", values, weights=weights)


def _steady_counts(work: Work, steps: Steps, found: Emissions) -> Ints:
    n = len(work.completions)
    counts = np.bincount(steps.j[found.at[found.steady]], minlength=n).astype(np.int64)
    starts, times = steps.blocks
    counts[spread(starts, times)] = counts[starts].repeat(times)
    return counts


def _remember(
    work: Work, steps: Steps, found: Emissions, which: Ints, *, length: Ints, tokens: Ints
) -> None:
    """Keep the gaps that are no plain interval: a request's own quantiles need them."""
    actor = steps.actor[found.at[which]]
    own = work.rows["gaps_ok"][actor] == 1
    special = table(
        GAPS,
        serial=work.roll.serials[actor[own]],
        kind=np.full(int(own.sum()), SPECIAL),
        a=length[own],
        b=tokens[own] - 1,
    )
    work.gaps.append(special)


def _stretches(work: Work, steps: Steps, found: Emissions) -> None:
    """Close every stretch of steady gaps that another emission ends; the last one stays open."""
    if not len(found.at):
        return
    rows, actor = work.rows, steps.actor[found.at]
    whole = rows["gaps_ok"] == 1
    steady = found.steady if whole.all() else found.steady & whole[actor]
    heads = indices_of(heads_of(actor))
    last = extended(heads[1:], len(actor)) - 1
    who = actor[heads]
    was_open = shifted(steady, heads, rows["span"][who] != NULL)
    begins = steady & ~was_open
    start = np.where(begins, found.k, NULL)
    start[heads] = np.where(begins[heads], found.k[heads], rows["span"][who])
    marks = begins.copy()
    marks[heads] = True
    # the begin of the stretch that an entry continues or ends
    start = start[np.maximum.accumulate(np.where(marks, np.arange(len(actor)), 0))]
    closes = was_open & ~steady
    close_start = shifted(start, heads, rows["span"][who])[closes]
    end_k = found.k + steps.times[found.at] - 1
    close_end = shifted(end_k, heads, rows["last_k"][who])[closes]
    work.gaps.append(
        table(
            GAPS,
            serial=work.roll.serials[actor[closes]],
            kind=np.full(int(closes.sum()), SPAN),
            a=close_start,
            b=close_end,
        )
    )
    rows["span"][actor[last]] = np.where(steady[last], start[last], NULL)


def keep(work: Work, steps: Steps, found: Emissions, contexts: Contexts) -> None:
    """Sums, instants and the last emission of each request into the roll."""
    rows, at, done = work.rows, found.at, work.completions
    actor = steps.actor[at]
    last = indices_of(lasts_of(actor))
    who, step = actor[last], at[last]
    more = steps.times[step] - 1
    final = steps.j[step] + more
    rows["last_c"][who] = rows["last_token"][who] = done.c[final]
    rows["last_k"][who] = found.k[last] + more
    rows["last_emit"][who] = steps.first[step] + more
    opens = indices_of(found.opens)
    rows["first_token"][actor[opens]] = done.c[steps.j[at[opens]]]
    rows["first_k"][actor[opens]] = found.k[opens]
    _observe_first(work, actor[opens])
    _keep_crossed(work, steps, at)
    _keep_sums(work, steps, contexts)


def _observe_first(work: Work, who: Ints) -> None:
    arrived = work.rows["arrived"][who]
    waited = (work.rows["first_token"][who] - arrived)[arrived != NULL]
    work.state.totals.count("clamped_durations", int((waited < 0).sum()))
    work.state.totals.observe("time_to_first_token_seconds", np.maximum(waited, 0))


def _keep_crossed(work: Work, steps: Steps, at: Ints) -> None:
    """Whether a preemption came after the last emission."""
    mark = np.zeros(len(steps), np.int64)
    mark[at] = 1
    mark[steps.edges[steps.kind[steps.edges] == PREEMPT]] = 2
    told = indices_of(mark)
    actor = steps.actor[told]
    last = indices_of(lasts_of(actor))
    work.rows["crossed"][actor[last]] = mark[told[last]] == 2


def _keep_sums(work: Work, steps: Steps, contexts: Contexts) -> None:
    rows = work.rows
    if not len(steps):
        return
    who = steps.actor[steps.heads]
    rows["out"][who] += np.add.reduceat(steps.emitted * steps.times, steps.heads)
    rows["steps"][who] += np.add.reduceat(steps.times, steps.heads)
    decode = np.where(steps.kind == 0, steps.tokens * steps.times, 0)
    rows["decode"][who] += np.add.reduceat(decode, steps.heads)
    prefill = indices_of(steps.kind == 1)
    actor, tokens = steps.actor[prefill], steps.tokens[prefill]
    np.add.at(rows["prefill"], actor, tokens)
    np.add.at(rows["recomputed"], actor, tokens * contexts.recompute[prefill])
    np.add.at(rows["fresh"], actor, tokens * ~contexts.stale[prefill])


def count_unresolved(work: Work, steps: Steps) -> None:
    """Members whose request is unknown."""
    unnamed = work.rows["named"] == 0
    if not unnamed.any():
        return
    unnamed = unnamed[steps.actor]
    work.state.totals.count("unresolved_members", int(steps.times[unnamed].sum()))
