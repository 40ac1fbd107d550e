"""Facts that become rows as they are: preemptions, resumptions, deferrals, transfers, notices."""

from __future__ import annotations

import numpy as np

from batchscope.exporter.fold.contexts import Contexts
from batchscope.exporter.fold.flight import PREEMPTED_LINK
from batchscope.exporter.fold.layout import (
    LINKS,
    NULL,
    Ints,
    differences,
    extended,
    stacked,
    table,
)
from batchscope.exporter.fold.pieces import Part
from batchscope.exporter.fold.steps import PREEMPT, Steps
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, NoticeKind, words

_REASONS = words(DeferralReason)
_NOTICES = words(NoticeKind)


def preemptions(work: Work) -> None:
    """Rows, links and counters of PREEMPTED."""
    part = work.piece.of(r.PREEMPTED)
    if part is None:
        return
    at, serials, lost = part.wide("at_ns"), part.wide("serial"), part.wide("lost_tokens")
    ids = work.next_id(part.pos)
    work.emit(
        "preemptions",
        serial=serials,
        iteration_id=ids,
        at_ns=at,
        unix_ns=at + work.offsets.at(part.pos),
        lost_tokens=lost,
        mode=part.wide("mode"),
        reason=part.wide("reason"),
    )
    code = np.full(len(ids), PREEMPTED_LINK)
    links = table(LINKS, iteration_id=ids, serial=serials, link=code, tokens=lost)
    work.state.links = stacked([work.state.links, links])
    which, actor = work.concerned(serials, part.pos)
    np.add.at(work.rows["lost"], actor, lost[which])
    work.state.totals.count("preemptions", len(ids))
    work.state.totals.count("preemption_lost_tokens", int(lost.sum()))


def admissions(work: Work, steps: Steps, contexts: Contexts) -> None:
    """Book what each closed admission had to compute, then take the targets of the new ones.

    An admission had to compute from its hit to its target, less what was left when it ended.
    """
    rows, resumed = work.rows, work.piece.of(r.RESUMED)
    if not len(steps.edges):
        return
    preempts = steps.edges[steps.kind[steps.edges] == PREEMPT]
    actor, held = steps.actor[preempts], contexts.before[preempts]
    targets, hits = rows["target"][actor], rows["hit"][actor]
    if resumed is None:
        np.add.at(rows["due"], actor, due(held, targets, hits))
        return
    known, who = work.concerned(resumed.fields["serial"], resumed.pos)
    order = np.lexsort((resumed.pos[known], who))
    known, who = known[order], who[order]
    pos = resumed.pos[known]
    target, cached = resumed.wide("target_tokens")[known], resumed.wide("cached_tokens")[known]
    before = _latest(who, pos, actor, steps.pos[preempts], work.piece.hi + 1)
    inside = before >= 0
    targets, hits = (
        np.where(inside, extended(told, 0)[before], old)
        for told, old in ((target, targets), (cached, hits))
    )
    np.add.at(rows["due"], actor, due(held, targets, hits))
    np.add.at(rows["cached_resume"], who, cached)
    rows["target"][who], rows["hit"][who] = target, cached


def _latest(who: Ints, pos: Ints, actor: Ints, at: Ints, shift: int) -> Ints:
    """Index of the same request's latest entry before each position, -1: none."""
    found = np.searchsorted(who * shift + pos, actor * shift + at) - 1
    return np.where((found >= 0) & (extended(who, -1)[found] == actor), found, -1)


def due(held: Ints, target: Ints, hit: Ints) -> Ints:
    """Prefill that an admission had when it ended with `held` tokens computed; 0 if unknown."""
    done = np.maximum(np.minimum(held, target) - hit, 0)
    return np.where((held == NULL) | (held == 0) | (target == NULL) | (hit == NULL), 0, done)


def deferrals(work: Work) -> None:
    """Requests left out of each decision, by root cause and position."""
    part = work.piece.of(r.SCHEDULED)
    if part is None:
        return
    offsets, rows = part.tail("deferred")
    owner = np.repeat(np.arange(len(part)), differences(offsets))
    reason, requests = rows["reason"].astype(np.int64), rows["requests"].astype(np.int64)
    if len(rows):
        work.emit(
            "deferrals",
            iteration_id=work.decisions.ids[owner],
            unix_ns=work.flight["sched_unix"][work.decisions.rows[owner]],
            reason=reason,
            position=rows["position"].astype(np.int64),
            requests=requests,
        )
    _judge(work, part, owner, requests)


def _judge(work: Work, part: Part, owner: Ints, requests: Ints) -> None:
    out = np.bincount(owner, requests, len(part)).astype(np.int64)
    waiting, ids = part.wide("waiting"), work.decisions.ids
    work.state.audit.judge(
        "deferred_waiting",
        out <= waiting,
        lambda i: f"iteration {ids[i]}: {out[i]} left out, {waiting[i]} waiting",
    )


def transfers(work: Work) -> None:
    """KV hops as they are told."""
    part = work.piece.of(r.TRANSFER)
    if part is None:
        return
    at = part.wide("at_ns")
    work.emit(
        "transfers",
        serial=part.wide("serial"),
        start_ns=part.wide("start_ns"),
        end_ns=at,
        unix_ns=at + work.offsets.at(part.pos),
        handshake_ns=part.wide("handshake_ns", r.NULL64),
        wait_ns=part.wide("wait_ns", r.NULL64),
        bytes=part.wide("bytes", r.NULL["Q"]),
        blocks=part.wide("blocks", r.NULL32),
        peer=[work.state.strings.get(n) for n in part.fields["peer"].tolist()],
        direction=part.wide("direction"),
        failed=(part.wide("flags") & r.FAILED != 0).astype(np.int64),
    )


def notices(work: Work) -> None:
    """What the adapter said."""
    part = work.piece.of(r.NOTICE)
    if part is None:
        return
    at, (offsets, rows) = part.wide("at_ns"), part.tail("text")
    said, kinds = rows["byte"].tobytes(), part.wide("notice")
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    work.emit(
        "notices",
        at_ns=at,
        unix_ns=at + work.offsets.at(part.pos),
        kind=kinds,
        seam=[work.state.strings.get(n) for n in part.fields["seam"].tolist()],
        count=part.wide("count"),
        text=[said[a:b].decode("utf-8", "replace") for a, b in bounds],
    )
    for code in kinds.tolist():
        known = code if 0 < code < len(_NOTICES) else NoticeKind.INFO.code
        work.state.totals.count("notices", 1, str(_NOTICES[known]))


def strings(work: Work) -> None:
    """Labels: an id keeps its meaning for the life of a ring."""
    part = work.piece.of(r.STRING)
    if part is None:
        return
    offsets, rows = part.tail("text")
    said = rows["byte"].tobytes()
    for i, number in enumerate(part.fields["string"].tolist()):
        text = said[offsets[i] : offsets[i + 1]].decode("utf-8", "replace")
        work.state.strings[number] = text


def empties(work: Work) -> None:
    """Decisions that scheduled nothing."""
    part = work.piece.of(r.EMPTY)
    if part is not None:
        work.state.totals.count("empty_schedules", int(part.wide("schedules").sum()))


def losses(work: Work, lost: Part) -> None:
    """What nobody read; from here on some figures of some requests stay unknown."""
    state = work.state
    state.lossy = True
    iterations = lost.wide("iterations", r.NULL["Q"])
    work.emit(
        "losses",
        unix_ns=np.full(len(lost), state.unix),
        first_seq=lost.wide("first_seq"),
        records=lost.wide("records"),
        iterations=iterations,
        rejected=lost.wide("rejected"),
    )
    state.totals.count("lost_records", int(lost.wide("records").sum()))
    state.totals.count("lost_iterations", int(iterations[iterations != NULL].sum()))
    state.totals.count("rejected_records", int(lost.wide("rejected").sum()))
