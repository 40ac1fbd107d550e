"""Iterations: what each completed batch held and made, its row, and the counters it adds to."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchscope.exporter.fold.axis import given_up
from batchscope.exporter.fold.contexts import Contexts
from batchscope.exporter.fold.flight import keep_in_flight, set_members, unknown_members
from batchscope.exporter.fold.layout import (
    FAR,
    IN_FLIGHT,
    NULL,
    Bools,
    Ints,
    Rows,
    among,
    extended,
    indices_of,
    spread,
)
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.steps import Steps
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import FinishReason, Phase, words

_PHASES = words(Phase)
_BY_KIND = np.array(
    [phase.code for phase in (Phase.EMPTY, Phase.DECODE, Phase.PREFILL, Phase.MIXED)], np.int64
)
"""Code of a phase by 2 x (has prefill) + (has decode)."""
_COPIED = {
    "iteration_id": "iteration_id",
    "completion_index": "k",
    "scheduled_at_ns": "at",
    "completed_at_ns": "c",
    "schedule_ns": "schedule_ns",
    "interval_ns": "interval",
    "host_ns": "host",
    "exec_ns": "exec",
    "idle_ns": "idle",
    "forward_ns": "forward",
    "budget_tokens": "budget",
    "prefill_tokens": "prefill",
    "decode_tokens": "decode",
    "draft_tokens": "draft",
    "recomputed_tokens": "recomputed",
    "output_tokens": "output",
    "prefill_members": "n_prefill",
    "decode_members": "n_decode",
    "decode_gap_members": "gap_members",
    "decode_context_tokens": "decode_ctx",
    "prefill_context_product": "product",
    "padded_tokens": "padded",
    "running": "running",
    "waiting": "waiting",
    "kv_total_blocks": "kv_total",
    "kv_used_blocks": "kv_used",
    "kv_evictable_blocks": "kv_evictable",
    "kv_waste_tokens": "waste",
    "kv_context_tokens": "context",
    "observer_ns": "observer",
}


def measure(work: Work, steps: Steps, contexts: Contexts, gap_members: Ints) -> None:
    """Fill what the members of each completed batch add up to; NULL where they are unknown."""
    done, flight = work.completions, work.flight
    if not len(done):
        return
    rows = done.rows
    known = ~unknown_members(flight.take(rows))
    product, recomputed = _prefill_sums(work)
    for name, values in (
        ("output", _output(work)),
        ("gap_members", gap_members),
        ("decode_ctx", _decode_contexts(work, steps, contexts)),
        ("product", product),
        ("recomputed", recomputed),
    ):
        flight[name][rows] = np.where(known, values, NULL)


def _output(work: Work) -> Ints:
    done, part = work.completions, work.piece.of(r.COMPLETED)
    rows = work.flight.take(done.rows)
    out: Ints = rows["n_decode"] + rows["n_prefill"]
    if part is None:
        return out
    offsets, emitted = part.tail("emitted")
    extra = np.concatenate([[0], np.cumsum(emitted["tokens"].astype(np.int64) - 1)])
    return np.asarray(out + (extra[offsets[1:]] - extra[offsets[:-1]])[done.record])


def _decode_contexts(work: Work, steps: Steps, contexts: Contexts) -> Ints:
    """KV tokens that the decode members had computed before the step, NULL: of some unknown."""
    n = len(work.completions)
    decode = indices_of(steps.kind == 0)
    late_j, _, late_serial = steps.late
    held = np.concatenate([contexts.before[decode], _late_contexts(work, late_serial)])
    j = np.concatenate([steps.j[decode], late_j])
    out = np.bincount(j, np.where(held == NULL, 0, held), n).astype(np.int64)
    unknown = np.bincount(j, held == NULL, n).astype(np.int64)
    starts, times = steps.blocks
    members = np.bincount(steps.j[decode], minlength=n).astype(np.int64)
    at = spread(starts, times)
    age = spread(np.zeros(len(starts), np.int64), times)
    out[at] = out[starts].repeat(times) + age * members[starts].repeat(times)
    unknown[at] = unknown[starts].repeat(times)
    return np.where(unknown == 0, out, NULL)


def _late_contexts(work: Work, serials: Ints) -> Ints:
    """What requests held when they finished."""
    out = np.full(len(serials), NULL, np.int64)
    if not len(serials):
        return out
    actor = work.roll.find(serials)
    out[actor >= 0] = work.rows["ctx"][actor[actor >= 0]]
    out[actor < 0] = _of_gone(work, serials[actor < 0], "ctx")
    return out


def _of_gone(work: Work, serials: Ints, name: str) -> Ints:
    gone = work.state.gone.take(np.argsort(work.state.gone["serial"]))
    at = gone["serial"].searchsorted(serials)
    hit = extended(gone["serial"], -1)[at] == serials
    return np.where(hit, extended(gone[name], NULL)[at], NULL)


def _prefill_sums(work: Work) -> tuple[Ints, Ints]:
    """(sum of tokens x context before, recomputed tokens) of each completed batch."""
    done, flight, rows = work.completions, work.flight, work.prefill
    n = len(done)
    j_of = np.full(len(flight) + 1, -1, np.int64)
    j_of[done.rows] = np.arange(n)
    j = j_of[flight["iteration_id"].searchsorted(rows["iteration_id"])]
    mine = j >= 0
    rows, j, actor = rows.compress(mine), j[mine], work.prefill_actors[mine]
    product = np.bincount(j, rows["tokens"] * rows["start"], n).astype(np.int64)
    first = extended(
        np.where(work.rows["first_preempt"] == NULL, FAR, work.rows["first_preempt"]), FAR
    )[actor]
    named = extended(work.rows["named"], 0)[actor]
    gone = actor < 0
    told = _of_gone(work, rows["serial"][gone], "first_preempt")
    first[gone] = np.where(told == NULL, FAR, told)
    named[gone] = _of_gone(work, rows["serial"][gone], "named")
    again = np.bincount(j, rows["tokens"] * (rows["iteration_id"] >= first), n).astype(np.int64)
    unknown = np.bincount(j, named != 1, n) > 0
    return product, np.where(unknown, NULL, again)


def audit(work: Work, steps: Steps, contexts: Contexts) -> None:
    """Judge the piece's decisions by their own numbers, and prefill chunks by the context."""
    rows = work.flight.take(work.decisions.rows)
    ids, judge = rows["iteration_id"], work.state.audit.judge
    tokens = rows["prefill"] + rows["decode"]
    capped = indices_of(rows["budget"] != NULL)
    judge(
        "batch_budget",
        tokens[capped] <= rows["budget"][capped],
        lambda i: (
            f"iteration {ids[capped[i]]}: {tokens[capped[i]]} tokens of {rows['budget'][capped[i]]}"
        ),
    )
    told = indices_of(
        (rows["kv_total"] != NULL) & (rows["kv_used"] != NULL) & (rows["kv_evictable"] != NULL)
    )
    held = rows["kv_used"][told] + rows["kv_evictable"][told]
    judge(
        "kv_total",
        held <= rows["kv_total"][told],
        lambda i: f"iteration {ids[told[i]]}: {held[i]} blocks of {rows['kv_total'][told[i]]}",
    )
    _audit_members(work, rows)
    _audit_chunks(work, steps, contexts)


def _audit_members(work: Work, rows: Rows) -> None:
    known = indices_of(~unknown_members(rows))
    rows = rows.take(known)
    ids = rows["iteration_id"]
    sizes, _ = set_members(work, rows["members"])
    prefill = _per_iteration(work.prefill, ids, "tokens")
    members = _per_iteration(work.prefill, ids, None)
    drafts = _per_iteration(work.drafts, ids, "tokens") - _per_iteration(work.drafts, ids, None)
    holds = (rows["prefill"] == prefill) & (rows["decode"] == sizes + drafts)
    holds &= (rows["n_decode"] == sizes) & (rows["n_prefill"] == members)
    work.state.audit.judge(
        "member_sums",
        holds,
        lambda i: (
            f"iteration {ids[i]}: {rows['prefill'][i]} + {rows['decode'][i]} tokens told, "
            f"members have {prefill[i]} + {sizes[i] + drafts[i]}"
        ),
    )


def _per_iteration(rows: Rows, ids: Ints, column: str | None) -> Ints:
    at = rows["iteration_id"].searchsorted(ids)
    end = rows["iteration_id"].searchsorted(ids, side="right")
    if column is None:
        return end - at
    total = np.concatenate([[0], rows[column].cumsum()])
    return np.asarray(total[end] - total[at])


def _audit_chunks(work: Work, steps: Steps, contexts: Contexts) -> None:
    """A chunk begins where the context ends; the first one of all begins at its prefix hit."""
    chunks = indices_of((steps.kind == 1) & ~contexts.stale)
    before, start = contexts.before[chunks], steps.start[chunks]
    first = (before == 0) & (contexts.admission[chunks] == 0)
    judged = indices_of((before != NULL) & ~first)
    order = judged[np.argsort(steps.pos[chunks[judged]], kind="stable")]
    serials = work.roll.serials[steps.actor[chunks[order]]]
    work.state.audit.judge(
        "context_continuity",
        before[order] == start[order],
        lambda i: f"request {serials[i]}: chunk at {start[order[i]]}, {before[order[i]]} computed",
    )


def write(work: Work) -> None:
    """Write the rows that are final: completed and the cost of observing told, or given up."""
    state, flight = work.state, work.flight
    dead = (flight["done"] == 0) & (given_up(work, flight["iteration_id"]) < FAR)
    told = flight["iteration_id"] + 1 < state.next_id
    final = dead | ((flight["done"] == 1) & told)
    _excuse_failed(work)
    _judge_returns(work, dead)
    _emit(work, flight.compress(final), _final_pos(work, final))
    keep_in_flight(work, ~final)


def _judge_returns(work: Work, dead: Bools) -> None:
    """Every batch comes back, but for those a loss swallowed or the engine failed."""
    flight, done = work.flight, work.completions
    lost = indices_of(dead & (flight["judged"] == 1))
    ids = np.concatenate([flight["iteration_id"][done.rows], flight["iteration_id"][lost]])
    holds = np.repeat([True, False], [len(done), len(lost)])
    work.state.audit.judge(
        "scheduled_completed", holds, lambda i: f"iteration {ids[i]} never completed"
    )


def _excuse_failed(work: Work) -> None:
    """A batch in flight while a member of it ends in an error: its step has failed."""
    finished, flight = work.piece.of(r.FINISHED), work.flight
    if finished is None:
        return
    wrong = finished.fields["reason"][work.finished] == FinishReason.ERROR.code
    if not wrong.any():
        return
    failed = np.full(len(work.roll) + 1, FAR, np.int64)
    failed[work.leavers[wrong]] = finished.pos[work.finished[wrong]]
    rows, actors = _in_flight_members(work)
    born = np.full(len(flight), -1, np.int64)
    born[work.decisions.rows] = work.decisions.pos
    over = given_up(work, flight["iteration_id"])
    at = failed[actors]
    flight["judged"][rows[(born[rows] < at) & (at < over[rows])]] = 0


def _in_flight_members(work: Work) -> tuple[Ints, Ints]:
    """(row of the flight table, request) of every member of a batch that has not come back."""
    flight = work.flight
    open_ = indices_of(flight["done"] == 0)
    counts, index = set_members(work, flight["members"][open_])
    owner = flight["iteration_id"].searchsorted(work.prefill["iteration_id"])
    mine = among(owner, open_)
    rows = np.concatenate([open_.repeat(counts), owner[mine]])
    return rows, np.concatenate([work.set_actors[index], work.prefill_actors[mine]])


def _final_pos(work: Work, final: Bools) -> Ints:
    """Where each row became final: at its completion or at the next decision."""
    flight, done, decisions = work.flight, work.completions, work.decisions
    completed = np.full(len(flight), -1, np.int64)
    completed[done.rows] = done.pos
    ids = flight["iteration_id"]
    after = decisions.ids.searchsorted(ids + 1)
    known = extended(decisions.ids, NULL)[after] == ids + 1
    pos = np.where(known, extended(decisions.pos, -1)[after], -1)
    dead = (flight["done"] == 0) & final
    return np.where(dead, given_up(work, ids), np.maximum(completed, pos))[final]


def flush(work: Work) -> None:
    """Write completed rows although nothing will tell the cost of observing them."""
    done = work.flight["done"] == 1
    _emit(work, work.flight.compress(done), work.flight["iteration_id"][done])
    keep_in_flight(work, ~done)


def _emit(work: Work, rows: Rows, pos: Ints) -> None:
    if not len(rows):
        return
    rows = rows.take(np.lexsort((rows["iteration_id"], pos)))
    work.emit("iterations", **columns(rows))
    links = work.state.links
    final = among(links["iteration_id"], rows["iteration_id"])
    mine = links.compress(final)
    if len(mine):
        place = np.argsort(rows["iteration_id"])
        at = place[rows["iteration_id"].searchsorted(mine["iteration_id"], sorter=place)]
        mine = mine.take(np.lexsort((mine["serial"], mine["link"], at)))
        names = ("iteration_id", "serial", "link", "tokens")
        work.emit("_links", **{name: mine[name].copy() for name in names})
    lately = links["iteration_id"] + IN_FLIGHT >= work.state.next_id
    work.state.links = links.compress(~final & lately)


def columns(rows: Rows) -> dict[str, Any]:
    """Every column of the iterations table."""
    out: dict[str, Any] = {name: rows[field].copy() for name, field in _COPIED.items()}
    open_ = rows["unix"] == NULL
    out["unix_ns"] = np.where(open_, rows["sched_unix"], rows["unix"])
    out["phase"] = phases(rows)
    out["graph_mode"] = _coded(rows["graph"])
    out["admission_stop"] = _coded(rows["stop"])
    out["head_serial"] = _coded(rows["head"])
    out["dummy"] = (rows["flags"] & r.DUMMY != 0).astype(np.int64)
    return out


def _coded(values: Ints) -> Ints:
    return np.where(values == 0, NULL, values)


def phases(rows: Rows) -> Ints:
    """Wire code of each batch's phase."""
    kind = 2 * (rows["prefill"] > 0) + (rows["decode"] > 0)
    return np.asarray(_BY_KIND[kind])


def count(work: Work) -> None:
    """Counters and histograms of the piece's decisions and completions."""
    totals, flight = work.state.totals, work.flight
    decided, rows = flight.take(work.decisions.rows), flight.take(work.completions.rows)
    totals.observe("schedule_duration_seconds", decided["schedule_ns"])
    part = work.piece.of(r.SCHEDULED)
    if part is not None:
        observer = part.wide("observer_ns", r.NULL64)
        totals.observe("observer_duration_seconds", observer[observer != NULL])
    if not len(rows):
        return
    phase = phases(rows)
    for code in indices_of(np.bincount(phase)).tolist():
        label, mine = str(_PHASES[code]), rows.compress(phase == code)
        totals.count("iterations", len(mine), label)
        intervals = mine["interval"][mine["interval"] != NULL]
        totals.observe("iteration_interval_seconds", intervals, label)
    for label in ("prefill", "decode"):
        totals.count("scheduled_tokens", int(rows[label].sum()), label)
    for name, column in _SUMS.items():
        values = rows[column]
        totals.count(name, int(values[values != NULL].sum()))
    members = rows["n_decode"] + rows["n_prefill"]
    totals.count("member_steps", int(members.sum()))
    totals.observe("batch_tokens", rows["prefill"] + rows["decode"])
    totals.observe("batch_requests", members)
    gaps = rows.compress((rows["gap_members"] != NULL) & (rows["gap_members"] > 0))
    totals.observe("time_between_tokens_seconds", gaps["interval"], weights=gaps["gap_members"])


_SUMS = {
    "recomputed_tokens": "recomputed",
    "draft_tokens": "draft",
    "output_tokens": "output",
    "host_seconds": "host",
    "exec_seconds": "exec",
    "idle_seconds": "idle",
}


def open_rows(state: State) -> dict[str, Any]:
    """Batches in flight, and those whose row isn't final."""
    return columns(state.flight)
