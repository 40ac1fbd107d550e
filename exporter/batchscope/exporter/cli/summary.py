"""What a run did, as the JSON object and the terminal lines of `batchscope demo`.

Reads the exporter over HTTP; the figures are those of the queries run_totals and deferral_totals.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

from batchscope.exporter.cli.exporter_client import get

Row = dict[str, Any]


def fetch(url: str, query: str, **params: Any) -> list[Row]:
    """Rows of a named query; Unreachable or Refused when the exporter doesn't give them."""
    given = {k: v for k, v in params.items() if v is not None}
    columns = get(url, f"/api/v1/query/{query}?{urllib.parse.urlencode(given)}")["columns"]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def summary(url: str, engine_totals: Row | None) -> Row:
    """The demo's JSON object; `engine` holds the engine's own totals under the same keys."""
    row = fetch(url, "run_totals")[0]
    deferrals = {d["reason"]: d["requests"] for d in fetch(url, "deferral_totals")}
    return _shape(row, deferrals) | {"engine": engine_totals}


def _shape(row: Row, deferrals: dict[str, int]) -> Row:
    seconds, met, judged = row["seconds"], row["met"], row["met"] + row["missed"]
    return {
        "seconds": _rounded(seconds, 3),
        "iterations": row["iterations"],
        "member_steps": row["member_steps"],
        "requests": _pick(row, "arrived", "finished", "aborted", "failed", "live"),
        "tokens": {
            name: row[f"{name}_tokens"]
            for name in ("prefill", "decode", "output", "cached", "recomputed")
        },
        "ttft_ms": _quantiles(row, "ttft", 1e6),
        "tbt_ms": _quantiles(row, "tbt", 1e6),
        "throughput": {
            "requests_per_s": _per_s(row["finished"], seconds),
            "tokens_per_s": _per_s(row["output_tokens"], seconds),
        },
        "goodput": {
            "requests_per_s": _per_s(met, seconds),
            "attained_ratio": _rounded(met / judged, 4) if judged else None,
            "on_time_tokens_per_s": _per_s(row["on_time_tokens"], seconds),
        },
        "deferrals": deferrals,
        "preemptions": row["preemptions"],
        "kv": {
            "used_ratio_max": _rounded(row["kv_used_ratio_max"], 4),
            "waste_ratio": _rounded(row["kv_waste_ratio"], 4),
        },
        "audit": {"checks": row["audit_checks"], "violations": row["audit_violations"]},
        "loss": {"records": row["lost_records"]},
        "observer_us": _quantiles(row, "observer", 1e3),
    }


def live_lines(url: str, *, from_unix_ns: int) -> list[str]:
    """The terminal's few lines: the last seconds' rates, and what stands out since the start."""
    recent = fetch(url, "run_totals", from_unix_ns=from_unix_ns)[0]
    total = _shape(fetch(url, "run_totals")[0], {})
    left_out = fetch(url, "deferral_totals", from_unix_ns=from_unix_ns)
    return [
        _batch_line(recent),
        _latency_line(total),
        _queue_line(recent, left_out),
        _goodput_line(total),
        _health_line(total),
    ]


def _batch_line(row: Row) -> str:
    rates = (
        _per_s(row[k], row["seconds"]) for k in ("iterations", "prefill_tokens", "decode_tokens")
    )
    per_s, prefill, decode = (_number(rate) for rate in rates)
    return (
        f"batches   {per_s} iterations/s · prefill {prefill} · decode {decode} tokens/s"
        f" · {_number(row['running'])} running · {_number(row['waiting'])} waiting"
    )


def _latency_line(total: Row) -> str:
    ttft, tbt = total["ttft_ms"], total["tbt_ms"]
    return (
        f"latency   TTFT p50 {_number(ttft['p50'])} p99 {_number(ttft['p99'])} ms"
        f" · TBT p50 {_number(tbt['p50'], 1)} p99 {_number(tbt['p99'], 1)} ms"
    )


def _queue_line(row: Row, left_out: list[Row]) -> str:
    kv = row["kv_used_ratio"]
    reasons = ", ".join(f"{d['reason']} {_number(d['requests'])}" for d in left_out[:4]) or "nobody"
    used = "-" if kv is None else f"{kv:.0%}"
    return f"left out  {reasons} · {row['preemptions']} preempted · KV {used} used"


def _goodput_line(total: Row) -> str:
    good, ratio = total["goodput"], total["goodput"]["attained_ratio"]
    met = "-" if ratio is None else f"{ratio:.0%}"
    return (
        f"goodput   {_number(good['requests_per_s'], 2)} of"
        f" {_number(total['throughput']['requests_per_s'], 2)} requests/s met the SLO ({met})"
    )


def _health_line(total: Row) -> str:
    audit = total["audit"]
    return (
        f"observer  {_number(total['observer_us']['p50'], 1)} us an iteration"
        f" · {_number(audit['checks'])} laws checked, {audit['violations']} violated"
        f" · {total['loss']['records']} records lost"
    )


def _pick(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _quantiles(row: Row, name: str, unit_ns: float) -> Row:
    values = {q: row[f"{name}_{q}_ns"] for q in ("p50", "p99")}
    return {q: None if ns is None else round(ns / unit_ns, 3) for q, ns in values.items()}


def _per_s(count: float | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds else round(count / seconds, 3)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
