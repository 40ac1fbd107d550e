"""Requests at their end, and as they stand: every column of the requests table."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchscope.exporter.audit import E2E_TOLERANCE_NS
from batchscope.exporter.fold.edges import due
from batchscope.exporter.fold.layout import (
    GONE,
    IN_FLIGHT,
    NULL,
    Ints,
    Rows,
    indices_of,
    stacked,
    table,
)
from batchscope.exporter.fold.quantiles import QUANTILES, open_gaps, settle
from batchscope.exporter.fold.state import State
from batchscope.exporter.fold.verdicts import judge
from batchscope.exporter.fold.work import Work
from batchscope.schemas import records as r
from batchscope.schemas.reasons import FinishReason, words

_REASONS = words(FinishReason)
_COPIED = {
    "serial": "serial",
    "priority": "priority",
    "prompt_tokens": "prompt",
    "max_tokens": "max_tokens",
    "arrived_at_ns": "arrived",
    "first_scheduled_at_ns": "first_sched",
    "first_token_at_ns": "first_token",
    "last_token_at_ns": "last_token",
    "arrived_unix_ns": "arrived_unix",
    "prefill_tokens": "prefill",
    "decode_tokens": "decode",
    "output_tokens": "out",
    "cached_tokens": "cached",
    "cached_on_resume_tokens": "cached_resume",
    "recomputed_tokens": "recomputed",
    "steps": "steps",
    "preemptions": "preemptions",
    "lost_tokens": "lost",
    "deferrals": "deferrals",
    "in_step_ns": "in_step",
    "broken": "broken",
}
_OF_THE_END = (
    *("finished_at_ns", "finish_reason", "engine_output_tokens", "e2e_ns", "tpot_ns"),
    *(f"{name}_ns" for name in (*QUANTILES, "tbt_max")),
    *("verdict", "slo_version", "engine_queue_ns", "engine_ttft_ns", "engine_e2e_ns"),
)


def finish(work: Work) -> None:
    """Write the requests that ended, in order of their ends; they leave the roll's next state."""
    finished = work.piece.of(r.FINISHED)
    if finished is None or not len(work.leavers):
        work.state.gaps = open_gaps(work)
        return
    quantiles = settle(work, work.leavers)
    rows, which = work.rows.take(work.leavers), work.finished
    told = {
        "finished_at_ns": finished.wide("at_ns")[which],
        "finish_reason": finished.wide("reason")[which],
        "engine_output_tokens": finished.wide("output_tokens")[which],
        **{
            name: finished.wide(name, r.NULL64)[which]
            for name in ("engine_queue_ns", "engine_ttft_ns", "engine_e2e_ns")
        },
    }
    told["finish_reason"][told["finish_reason"] == 0] = FinishReason.UNKNOWN.code
    unix = told["finished_at_ns"] + work.offsets.at(finished.pos[which])
    _write(work, rows, told, unix, quantiles)
    _audit(work, rows, told)
    _bury(work, work.next_id(finished.pos[which]))


def end_unknown(work: Work, leavers: Ints, *, at: int, unix: int) -> None:
    """End requests whose own end nobody saw."""
    n = len(leavers)
    work.leavers = leavers
    quantiles = settle(work, leavers)
    if not n:
        return
    nothing = np.full(n, NULL, np.int64)
    told = dict.fromkeys(
        ("engine_output_tokens", "engine_queue_ns", "engine_ttft_ns", "engine_e2e_ns"), nothing
    )
    told["finished_at_ns"] = np.full(n, at)
    told["finish_reason"] = np.full(n, FinishReason.UNKNOWN.code)
    work.rows["broken"][leavers] = 1
    _write(work, work.rows.take(leavers), told, np.full(n, unix), quantiles)
    _bury(work, np.full(n, work.state.next_id))


def _write(
    work: Work, rows: Rows, told: dict[str, Ints], unix: Ints, quantiles: dict[str, Ints]
) -> None:
    columns = _facts(work.state, rows, work.slo is not None and work.slo.deadlines is not None)
    columns |= told | {f"{name}_ns": values for name, values in quantiles.items()}
    columns["unix_ns"] = unix
    e2e = since(rows["last_token"], rows["arrived"])
    columns["e2e_ns"] = e2e
    per_token = tpot(rows["first_token"], rows["last_token"], rows["out"])
    columns["tpot_ns"] = np.where(rows["gaps_ok"] == 1, per_token, NULL)
    columns["verdict"] = judge(work, columns)
    _name_slo(work, columns, len(rows))
    work.emit("requests", **columns)
    _count(work, columns)
    for serial in rows["serial"].tolist() if work.state.texts else ():
        work.state.texts.pop(serial, None)


def _facts(state: State, rows: Rows, has_deadlines: bool) -> dict[str, Any]:  # noqa: FBT001
    """What is true of a request at any time."""
    columns: dict[str, Any] = {name: rows[field].copy() for name, field in _COPIED.items()}
    columns |= identity(state, rows)
    columns["queue_ns"] = since(rows["first_sched"], rows["arrived"])
    columns["ttft_ns"] = since(rows["first_token"], rows["arrived"])
    known = has_deadlines & (rows["arrived"] != NULL) & (rows["broken"] == 0)
    columns["on_time_tokens"] = np.where(known, rows["on_time"], NULL)
    return columns


def since(end: Ints, begin: Ints) -> Ints:
    """End - begin, never negative, NULL when either is unknown."""
    known = (end != NULL) & (begin != NULL)
    return np.where(known, np.maximum(end - np.where(known, begin, 0), 0), NULL)


def tpot(first: Ints, last: Ints, tokens: Ints) -> Ints:
    """Time per token after the first, NULL below two tokens."""
    span = since(last, first)
    return np.where((span != NULL) & (tokens >= 2), span // np.maximum(tokens - 1, 1), NULL)


def identity(state: State, rows: Rows) -> dict[str, list[str | None]]:
    """Keys, trace and labels as text."""
    keys, externals = _hex(rows["key"]), _hex(rows["external"])
    if state.texts:
        texts = [state.texts.get(serial, (None, None)) for serial in rows["serial"].tolist()]
        keys = [text[0] or key for text, key in zip(texts, keys, strict=True)]
        externals = [text[1] or key for text, key in zip(texts, externals, strict=True)]
    return {
        "request_key": keys,
        "external_key": externals,
        "trace_id": _traces(rows),
        "parent_span_id": _hex(rows["parent"], none=0),
        **{name: _labels(state, rows[name]) for name in ("model", "lora", "tenant")},
    }


def _labels(state: State, numbers: Ints) -> list[str | None]:
    """Words of interned labels; mostly there are none."""
    if not numbers.any():
        return [None] * len(numbers)
    return [state.strings.get(n) for n in numbers.tolist()]


_U64 = 2**64 - 1


def _hex(keys: Ints, *, none: int = NULL) -> list[str | None]:
    if not (keys != none).any():
        return [None] * len(keys)
    return [None if key == none else f"{key & _U64:016x}" for key in keys.tolist()]


def _traces(rows: Rows) -> list[str | None]:
    if not (rows["trace_hi"] | rows["trace_lo"]).any():
        return [None] * len(rows)
    halves = zip(rows["trace_hi"].tolist(), rows["trace_lo"].tolist(), strict=True)
    return [f"{hi & _U64:016x}{lo & _U64:016x}" if hi or lo else None for hi, lo in halves]


def _name_slo(work: Work, columns: dict[str, Any], n: int) -> None:
    slo = work.slo
    columns["slo"] = [None if slo is None else slo.name] * n
    columns["slo_version"] = np.full(n, NULL if slo is None else slo.version, np.int64)


def _count(work: Work, columns: dict[str, Any]) -> None:
    totals = work.state.totals
    for code, n in enumerate(np.bincount(columns["finish_reason"]).tolist()):
        known = code if 0 < code < len(_REASONS) else FinishReason.UNKNOWN.code
        totals.count("requests_finished", n, str(_REASONS[known]))
    e2e = columns["e2e_ns"]
    totals.observe("request_duration_seconds", e2e[e2e != NULL])


def _audit(work: Work, rows: Rows, told: dict[str, Ints]) -> None:
    """What only holds for requests that were seen whole."""
    whole = indices_of((rows["broken"] == 0) & (rows["named"] == 1))
    rows = rows if len(whole) == len(rows) else rows.take(whole)
    judge_ = work.state.audit.judge
    said = told["engine_output_tokens"][whole]
    serials = rows["serial"]
    judge_(
        "tokens_emitted",
        rows["out"] == said,
        lambda i: f"request {serials[i]}: {rows['out'][i]} tokens seen, the engine says {said[i]}",
    )
    _audit_prefill(work, rows)
    ours = since(rows["last_token"], rows["arrived"])
    theirs = told["engine_e2e_ns"][whole]
    both = indices_of((ours != NULL) & (theirs != NULL))
    judge_(
        "engine_e2e",
        ours[both] <= theirs[both] + E2E_TOLERANCE_NS,
        lambda i: (
            f"request {serials[both[i]]}: {ours[both[i]]} ns, the engine says {theirs[both[i]]}"
        ),
    )


def _audit_prefill(work: Work, rows: Rows) -> None:
    """Prefill = sum over admissions of what each had to compute, less what was left."""
    running = rows["wait"] == 0
    expected = rows["due"] + np.where(running, due(rows["ctx"], rows["target"], rows["hit"]), 0)
    told = indices_of((rows["hit"] != NULL) | (rows["steps"] == 0))
    fresh, expected, serials = rows["fresh"][told], expected[told], rows["serial"][told]
    work.state.audit.judge(
        "prefill_sum",
        fresh == expected,
        lambda i: f"request {serials[i]}: {fresh[i]} prefilled, {expected[i]} due",
    )


def _bury(work: Work, next_id: Ints) -> None:
    """Keep for a while who finished: batches in flight may still hold it."""
    rows, who = work.rows, work.leavers
    gone = table(
        GONE,
        serial=rows["serial"][who],
        until=next_id - 1 + IN_FLIGHT,
        ctx=rows["ctx"][who],
        first_preempt=rows["first_preempt"][who],
        named=rows["named"][who],
    )
    work.state.gone = stacked([work.state.gone, gone])


def open_rows(state: State, slo: bool) -> dict[str, Any]:  # noqa: FBT001
    """Live requests as they stand; what only the end tells is NULL."""
    rows = state.live
    n = len(rows)
    columns = _facts(state, rows, slo)
    nothing = np.full(n, NULL, np.int64)
    columns |= {name: nothing.copy() for name in _OF_THE_END}
    columns["unix_ns"] = np.full(n, max(state.unix, 0), np.int64)
    columns["slo"] = [None] * n
    columns["deferrals"] += _of_open_waits(state)
    return columns


def _of_open_waits(state: State) -> Ints:
    """Decisions that left each live request out since its wait began; 0 of who doesn't wait."""
    rows, skips = state.live, state.skips
    shared = (state.cum_n - rows["wait_n"]).sum(axis=1)
    order = np.argsort(rows["serial"], kind="stable")
    at = order[rows["serial"].searchsorted(skips["serial"], sorter=order)]
    np.add.at(shared, at, skips["decisions"])  # they are in wait_n by now, not in the rows yet
    return np.where(rows["wait"] == 2, shared, 0)
