"""The steps of folding one piece, in the order in which each needs the one before."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchscope.exporter.clock import Offsets
from batchscope.exporter.fold import (
    axis,
    contexts,
    edges,
    emissions,
    iterations,
    kv,
    requests,
    run_rows,
    runs,
)
from batchscope.exporter.fold.arrivals import enter
from batchscope.exporter.fold.flight import schedule
from batchscope.exporter.fold.forget import forget_axis, forget_requests, hide, suspect
from batchscope.exporter.fold.layout import FAR, IN_FLIGHT, NULL, among, indices_of
from batchscope.exporter.fold.pieces import Piece, nothing
from batchscope.exporter.fold.quantiles import trim
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.steps import steps_of
from batchscope.exporter.fold.verdicts import on_time
from batchscope.exporter.fold.waits import wait
from batchscope.exporter.fold.work import Table, Work
from batchscope.schemas import records as r
from batchscope.schemas.slo import Slo

_TIMED = (
    *(r.ARRIVED, r.LIVE, r.SCHEDULED, r.COMPLETED, r.PREEMPTED, r.RESUMED, r.TRANSFER, r.BLOCKED),
    *(r.UNBLOCKED, r.EMPTY, r.FINISHED, r.NOTICE, r.BYE, r.DELIVERED),
)


def fold_piece(
    state: State, piece: Piece, *, slo: Slo | None, block: int | None
) -> dict[str, list[Table]]:
    """Take a piece into the state; returns its final rows."""
    breaks = piece.of(r.LOSS) or piece.of(r.BYE)
    ended = forget_requests(state) if piece.hidden or breaks else None
    work = begin(state, piece, slo=slo, block=block)
    if ended is not None:
        work.emit("runs", **ended)
    judge_seqs(work)
    if breaks:
        _break_off(work)
    else:
        _fold(work)
    _keep(work)
    if piece.hidden and (ended := forget_requests(state)) is not None:
        work.emit("runs", **ended)
    return work.out


def fold_end(state: State, *, slo: Slo | None, block: int | None) -> dict[str, list[Table]]:
    """Nothing will follow and no BYE says so: as if one stood at the latest record's instant."""
    ended = forget_requests(state)
    work = begin(state, nothing(), slo=slo, block=block)
    if ended is not None:
        work.emit("runs", **ended)
    _break_off(work)
    _end_all(work, pos=0, at=state.at, unix=state.unix)
    _keep(work)
    return work.out


def begin(state: State, piece: Piece, *, slo: Slo | None, block: int | None) -> Work:
    """Who is here in a piece."""
    offsets = Offsets(state.offset, piece.of(r.SEGMENT))
    roll, births, arrivals = enter(state, piece, offsets)
    work = Work(state, piece, offsets, slo, block, roll, births, state.flight)
    if arrivals is not None:
        work.emit("_arrivals", **arrivals)
    arrived = (births >= 0) & (roll.rows["arrived"] != NULL)
    state.totals.count("requests_arrived", int(arrived.sum()))
    return work


def _fold(work: Work) -> None:
    edges.strings(work)
    schedule(work)
    axis.leave(work)
    axis.complete(work)
    if work.piece.hidden:
        hide(work)
    edges.preemptions(work)
    edges.deferrals(work)
    edges.transfers(work)
    edges.notices(work)
    edges.empties(work)
    wait(work)
    _fold_steps(work)
    requests.finish(work)
    iterations.count(work)
    _gauge(work)
    iterations.write(work)


def _fold_steps(work: Work) -> None:
    work.history = np.concatenate([work.state.history, work.completions.c])
    steps = steps_of(work)
    found = contexts.contexts_of(work, steps)
    emitted = emissions.emissions_of(work, steps)
    gap_members = emissions.gap_rows(work, steps, emitted)
    on_time(work, steps, emitted)
    kv.held(work, steps, found)
    runs.runs(work, steps, found)
    iterations.audit(work, steps, found)
    edges.admissions(work, steps, found)
    contexts.keep(work, steps, found)
    emissions.keep(work, steps, emitted, found)
    emissions.count_unresolved(work, steps)
    iterations.measure(work, steps, found, gap_members)


def _break_off(work: Work) -> None:
    """A LOSS or a BYE: what is complete is written, what was linked is cut."""
    state = work.state
    work.set_offsets, work.set_serials = state.set_offsets, state.set_serials
    work.prefill, work.drafts, work.history = state.prefill, state.drafts, state.history
    work.ends = np.full(len(work.roll), FAR, np.int64)
    iterations.flush(work)
    forget_axis(state)
    lost, bye = work.piece.of(r.LOSS), work.piece.of(r.BYE)
    if lost is not None:
        edges.losses(work, lost)
        suspect(state)
        work.roll.rows["suspect"] = 1
    if bye is not None:
        at = int(bye.fields["at_ns"][0])
        unix = at + int(work.offsets.at(bye.pos)[0])
        _end_all(work, pos=int(bye.pos[0]), at=at, unix=unix)


def _end_all(work: Work, *, pos: int, at: int, unix: int) -> None:
    work.ends = np.full(len(work.roll), pos, np.int64)
    requests.end_unknown(work, np.arange(len(work.roll)), at=at, unix=unix)


def _keep(work: Work) -> None:
    """What lives goes on."""
    state = work.state
    if state.check_id != NULL:
        _look_for_the_lost(work)
    stays = np.ones(len(work.roll), bool)
    stays[work.leavers] = False
    state.live = work.rows.compress(stays)
    _forget_gone(state)
    trim(work)
    tell_time(work)


def tell_time(work: Work) -> None:
    """The clock after the piece: its offset, and the instant of its latest record."""
    work.state.offset = work.offsets.last
    timed = [part for record in _TIMED if (part := work.piece.of(record)) is not None]
    if timed:
        latest = max(timed, key=lambda part: int(part.pos[-1]))
        work.state.at = int(latest.fields["at_ns"][-1])


def _forget_gone(state: State) -> None:
    """Who finished is remembered while some batch in flight may hold it.

    A loss moves the next id on, but only a decision gives a batch up.
    """
    waiting = state.flight["iteration_id"][state.flight["done"] == 0]
    oldest = min(state.next_id, int(waiting.min(initial=FAR)) + IN_FLIGHT)
    state.gone = state.gone.compress(state.gone["until"] >= oldest)


def _look_for_the_lost(work: Work) -> None:
    """When as many have been heard of since a loss as the engine says it has, the rest is gone."""
    state, rows, decisions = work.state, work.rows, work.decisions
    _clear_suspects(work)
    if not len(decisions) or decisions.ids[-1] < state.check_id:
        return
    row = state.flight[state.flight["iteration_id"] == decisions.ids[-1]][0]
    stays = np.ones(len(rows), bool)
    stays[work.leavers] = False
    heard = int((stays & (rows["suspect"] == 0)).sum())
    lost = indices_of(stays & (rows["suspect"] == 1))
    state.check_id, state.check_step = (
        int(decisions.ids[-1]) + state.check_step,
        state.check_step * 2,
    )
    if heard == int(row["running"] + row["waiting"]):
        leavers = work.leavers
        unix = int(row["sched_unix"])
        run_rows.end_runs(work, lost)
        requests.end_unknown(work, lost, at=int(row["at"]), unix=unix)
        work.leavers = np.concatenate([leavers, lost])
        state.check_id = NULL


def _clear_suspects(work: Work) -> None:
    """Members of new batches, and whoever an edge names, are alive."""
    decisions = work.decisions
    first = work.set_offsets[len(work.set_offsets) - 1 - len(decisions)]
    new = among(work.prefill["iteration_id"], decisions.ids)
    told = [work.set_actors[first:], work.prefill_actors[new]] if len(decisions) else []
    for record in (r.PREEMPTED, r.RESUMED, r.BLOCKED, r.UNBLOCKED):
        part = work.piece.of(record)
        if part is not None:
            told.append(work.roll.find(part.fields["serial"]))
    if told:
        heard = np.concatenate(told)
        work.rows["suspect"][heard[heard >= 0]] = 0


def judge_seqs(work: Work) -> None:
    """Every record has the number after the one before it."""
    state, piece = work.state, work.piece
    seqs = piece.chunk.seqs[piece.lo : piece.hi]
    before = np.concatenate([[state.seq], seqs[:-1] + 1])
    known = indices_of(before != NULL)
    if piece.of(r.LOSS) is None:
        state.audit.judge(
            "seq_continuity",
            seqs[known] == before[known],
            lambda i: f"record {seqs[known[i]]} after {before[known[i]] - 1}",
        )
        state.seq = int(seqs[-1]) + 1
    else:
        state.seq = NULL


def _gauge(work: Work) -> None:
    """The latest decision's and completion's own figures."""
    known = work.state.gauges
    if len(work.decisions):
        row = work.flight[work.decisions.rows[-1]]
        values = {"running_requests": row["running"], "waiting_requests": row["waiting"]}
        values |= {name: row[name] for name in ("kv_total", "kv_used", "kv_evictable")}
        _set(known, values)
    if len(work.completions):
        row = work.flight[work.completions.rows[-1]]
        _set(known, {"kv_waste_tokens": row["waste"]})


def _set(known: dict[str, int], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value == NULL:
            known.pop(name, None)
        else:
            known[name] = int(value)
