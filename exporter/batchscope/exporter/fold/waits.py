"""The queue: who waits, since when, and for what.

Axis: decisions, in schedule order. The reason at which decision i stopped admitting covers
(d_i, d_i+1] for every request that waits and isn't skipped, so a wait is the difference of two
prefix sums and needs no order of the queue.
"""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.deferred import count_deferred
from batchscope.exporter.fold.flight import set_members
from batchscope.exporter.fold.layout import (
    FAR,
    NULL,
    Bools,
    Ints,
    among,
    extended,
    heads_of,
    indices_of,
)
from batchscope.exporter.fold.queue_sums import Spans, Sums, left_at, sums_of
from batchscope.exporter.fold.skips import Skips, passed_over
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, words

_WORDS = words(DeferralReason)


def first_scheduled(work: Work) -> Ints:
    """Per request: index of the decision that first had it as a member, n: none in this piece."""
    decisions, n = work.decisions, len(work.decisions)
    out = np.full(len(work.roll), n, np.int64)
    waiting = (work.rows["first_ok"] == 1) & (work.rows["first_sched"] == NULL)
    if not n or not waiting.any():
        return out
    sets = work.flight["members"][decisions.rows]
    new = indices_of(heads_of(sets))
    counts, index = set_members(work, sets[new])
    actor, at = work.set_actors[index][::-1], new.repeat(counts)[::-1]
    out[actor[actor >= 0]] = at[actor >= 0]  # in reverse, so that the first one stays
    owner = decisions.ids.searchsorted(work.prefill["iteration_id"])
    mine = among(work.prefill["iteration_id"], decisions.ids) & (work.prefill_actors >= 0)
    np.minimum.at(out, work.prefill_actors[mine], owner[mine])
    return np.where(waiting, out, n)


def wait(work: Work) -> None:
    """Follow every wait through the piece's decisions; write those that end."""
    sums, first = sums_of(work), first_scheduled(work)
    spans = _first_waits(work, first)
    if (work.rows["wait"] * work.rows["admission"]).any() or work.piece.of(r.PREEMPTED):
        spans = _joined([spans, _again_waits(work)])
    if work.piece.hidden:
        spans = _undisturbed(work, spans)
    _begin(work, sums, spans)
    skips = passed_over(work, sums, spans)
    count_deferred(work, sums, spans, skips)
    if len(spans):
        _finish(work, sums, spans, skips)
    _admit(work, first)
    _advance(work, sums)


def _first_waits(work: Work, first: Ints) -> Spans:
    """From arrival to the first decision that has the request."""
    rows = work.rows
    who = indices_of((rows["wait"] > 0) & (rows["admission"] == 0))
    return _spans(work, who, work.births[who], rows["wait_since"][who], first[who])


def _again_waits(work: Work) -> Spans:
    """From a preemption to the decision behind the resumption."""
    rows, decisions = work.rows, work.decisions
    old = indices_of((rows["wait"] > 0) & (rows["admission"] > 0))
    actor, pos, at = _edges(work, r.PREEMPTED)
    who = np.concatenate([old, actor])
    since = np.concatenate([rows["wait_since"][old], at])
    start = np.concatenate([np.full(len(old), -1, np.int64), pos])
    resumes = _next_resume(work, who, start)
    resumes[: len(old)][rows["resumed"][old] == 1] = -1
    spans = _spans(work, who, start, since, decisions.after(resumes))
    spans.resumed = resumes < FAR
    spans.admission[len(old) :] += 1 + _rank(actor, pos)
    return spans


def _rank(actor: Ints, pos: Ints) -> Ints:
    """How many of the same request come before each."""
    order = np.lexsort((pos, actor))
    ranked = actor[order]
    out = np.empty(len(actor), np.int64)
    out[order] = np.arange(len(actor)) - ranked.searchsorted(ranked)
    return out


def _spans(work: Work, who: Ints, pos: Ints, since: Ints, end: Ints) -> Spans:
    """Waits of `who` that began at `pos` (-1: before the piece)."""
    rows, decisions = work.rows, work.decisions
    begin = decisions.after(pos)
    ends = work.ends[who]
    gone = ends < extended(decisions.pos, FAR)[end]
    return Spans(
        actor=who,
        pos=pos,
        since=since,
        admission=rows["admission"][who],
        begin=begin,
        end=np.where(gone, decisions.after(ends), end),
        gone=gone,
        counted=(pos < 0) & (rows["wait"][who] == 2),
        resumed=np.zeros(len(who), bool),
        count=rows["wait_n"][who],
        time=rows["wait_t"][who],
    )


def _joined(parts: list[Spans]) -> Spans:
    names = Spans.__dataclass_fields__
    return Spans(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def _undisturbed(work: Work, spans: Spans) -> Spans:
    """In a stretch without members: waits over which no batch can have had the request."""
    happened = np.sort(np.concatenate([work.decisions.pos, work.completions.pos]))
    through = [happened.searchsorted(pos) for pos in (spans.pos, work.ends[spans.actor])]
    kept = spans.gone & (through[0] == through[1])
    return Spans(**{name: column[kept] for name, column in vars(spans).items()})


def _begin(work: Work, sums: Sums, spans: Spans) -> None:
    """Take the sums at the first decision of each wait; before it lies in_step."""
    n, rows = len(work.decisions), work.rows
    starts = indices_of(~spans.counted & (spans.begin < n) & (spans.begin <= spans.end))
    if not len(starts):
        return
    starts = starts[~(spans.gone[starts] & (spans.begin[starts] == spans.end[starts]))]
    begin, actor = spans.begin[starts], spans.actor[starts]
    spans.count[starts] = sums.count[begin]
    spans.time[starts] = sums.time[begin + 1]
    spans.counted[starts] = True
    first = spans.admission[starts] == 0
    in_step = np.maximum(work.decisions.at[begin] - spans.since[starts], 0)
    rows["in_step"][actor[first]] = in_step[first]


def _finish(work: Work, sums: Sums, spans: Spans, skips: Skips) -> None:
    """Write the waits that end; leave the others in the roll."""
    n = len(work.decisions)
    over = spans.gone | (spans.end < n)
    instant, pos, unix = _instants(work, spans)
    counted = indices_of(over & spans.counted)
    count, time = sums.until(spans.end[counted], instant[counted])
    _write(
        work,
        spans,
        counted,
        count=count - spans.count[counted],
        time=time - spans.time[counted],
        ends=(pos, unix),
        skips=skips,
    )
    _keep_open(work, spans, over)


def _instants(work: Work, spans: Spans) -> tuple[Ints, Ints, Ints]:
    """(instant, position, wall clock) of the end of each wait that ends here."""
    decisions = work.decisions
    instant = extended(decisions.at, 0)[spans.end]
    pos = extended(decisions.pos, FAR)[spans.end]
    instant = np.where(spans.gone, left_at(work)[spans.actor], instant)
    pos = np.where(spans.gone, work.ends[spans.actor], pos)
    return instant, pos, instant + work.offsets.at(pos)


def _write(
    work: Work,
    spans: Spans,
    which: Ints,
    *,
    count: Ints,
    time: Ints,
    ends: tuple[Ints, Ints],
    skips: Skips,
) -> None:
    """Rows of `waits`, deferred requests, and the deferrals of each request."""
    if not len(which):
        return
    span, reason = np.nonzero(count)
    mine = among(skips.span, which)
    spans_of = np.concatenate([which[span], skips.span[mine]])
    reasons = np.concatenate([reason, skips.reason[mine]])
    decisions = np.concatenate([count[span, reason], skips.decisions[mine]])
    ns = np.concatenate([time[span, reason], skips.ns[mine]])
    skipped = np.repeat([0, 1], [len(span), int(mine.sum())])
    pos, unix = ends
    order = np.lexsort((reasons, skipped, spans.actor[spans_of], pos[spans_of]))
    spans_of, reasons = spans_of[order], reasons[order]
    actor = spans.actor[spans_of]
    work.emit(
        "waits",
        serial=work.roll.serials[actor],
        admission=spans.admission[spans_of],
        reason=reasons,
        skipped=skipped[order],
        decisions=decisions[order],
        wait_ns=ns[order],
        unix_ns=unix[spans_of],
    )
    np.add.at(work.rows["deferrals"], actor, decisions[order])
    for code, n in enumerate(np.bincount(reasons).tolist()):
        work.state.totals.count("deferred_requests", n, str(_WORDS[code]))


def _keep_open(work: Work, spans: Spans, over: Bools) -> None:
    rows = work.rows
    ended = spans.actor[over]
    for name in ("wait", "resumed", "wait_n", "wait_t"):
        rows[name][ended] = 0
    rows["wait_since"][ended] = NULL
    still = indices_of(~over)
    actor = spans.actor[still]
    rows["wait"][actor] = np.where(spans.counted[still], 2, 1)
    rows["wait_n"][actor], rows["wait_t"][actor] = spans.count[still], spans.time[still]
    uncounted = still[~spans.counted[still]]
    rows["wait_n"][spans.actor[uncounted]] = rows["wait_t"][spans.actor[uncounted]] = 0
    rows["wait_since"][actor] = spans.since[still]
    rows["resumed"][actor] = spans.resumed[still]


def _admit(work: Work, first: Ints) -> None:
    """The decision that first had a request: its queue time ends, its prefix hit is known."""
    rows, decisions = work.rows, work.decisions
    who = indices_of(first < len(decisions))
    who = who[decisions.pos[first[who]] < work.ends[who]]
    if not len(who):
        return
    rows["first_sched"][who] = decisions.at[first[who]]
    known = who[(rows["arrived"][who] != NULL)]
    queue = rows["first_sched"][known] - rows["arrived"][known]
    work.state.totals.count("clamped_durations", int((queue < 0).sum()))
    work.state.totals.observe("queue_duration_seconds", np.maximum(queue, 0))
    _prefix_hits(work, who, decisions.ids[first[who]])


def _prefix_hits(work: Work, who: Ints, ids: Ints) -> None:
    """What the first chunk doesn't compute was cached."""
    rows, admitted = work.rows, np.full(len(work.roll) + 1, NULL, np.int64)
    admitted[who] = ids
    actor = work.prefill_actors
    first = (actor >= 0) & (admitted[actor] == work.prefill["iteration_id"])
    start = work.prefill["start"][first]
    rows["cached"][actor[first]] = rows["hit"][actor[first]] = start
    work.state.totals.count("cached_tokens", int(start.sum()))


def _advance(work: Work, sums: Sums) -> None:
    state, decisions = work.state, work.decisions
    state.cum_n, state.cum_t = sums.count[-1].copy(), sums.time[-1].copy()
    state.d, state.stop = int(sums.d[-1]), int(sums.stop[-1])
    state.decisions += len(decisions)


def _edges(work: Work, record: r.Record) -> tuple[Ints, Ints, Ints]:
    """(request, position, instant) of the records of known requests."""
    part = work.piece.of(record)
    if part is None:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    known, actor = work.concerned(part.fields["serial"], part.pos)
    return actor, part.pos[known], part.wide("at_ns")[known]


def _next_resume(work: Work, who: Ints, pos: Ints) -> Ints:
    """Position of the next RESUMED of each request, FAR: none here."""
    actor, at, _ = _edges(work, r.RESUMED)
    order = np.lexsort((at, actor))
    actor, at = actor[order], at[order]
    shift = work.piece.hi + 1
    found = np.searchsorted(actor * shift + at, who * shift + pos)
    hit = extended(actor, -1)[found] == who
    return np.where(hit, extended(at, FAR)[found], FAR)
