"""The distribution of times between tokens. Input are answers of tbt_histogram and latency."""

from __future__ import annotations

import pyarrow as pa

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, ms

_DECADES = (1, 2, 5)


def histogram(buckets: pa.Table, latency: pa.Table) -> Figure | None:
    """Bars on a logarithmic axis in ms with p50, p99 and max; None when no gap is longer than 0."""
    bars = [row for row in buckets.to_pylist() if row["lower_ns"] > 0]
    if not bars:
        return None
    edges = (ms(bars[0]["lower_ns"]) / 1.1, ms(bars[-1]["upper_ns"]) * 1.1)
    return {
        "bars": [[ms(row["lower_ns"]), ms(row["upper_ns"]), row["gaps"]] for row in bars],
        "range": list(edges),
        "ticks": ticks(*edges),
        "lines": _quantiles(latency),
        "colour": palette.PHASES["decode"],
    }


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade between two values in ms."""
    steps = [factor * 10.0**power for power in range(-4, 7) for factor in _DECADES]
    return [step for step in steps if low <= step <= high]


def summary(buckets: pa.Table, latency: pa.Table) -> str:
    """One sentence: how many gaps, their quantiles, how many came with another token."""
    row = _tbt(latency)
    if not row:
        return "No gap between two tokens ended in this range."
    zeros = sum(r["gaps"] for r in buckets.to_pylist() if r["lower_ns"] == 0)
    parts = [words.plural(row["samples"], "gap")]
    parts += [f"{q} {words.duration_text(row[f'{q}_ns'])}" for q in ("p50", "p99", "max")]
    parts += [f"{zeros:,} of 0 (several tokens at one instant)"] if zeros else []
    parts += [] if row["exact"] else ["quantiles within 1 %"]
    return " · ".join(parts)


def _quantiles(latency: pa.Table) -> list[list[object]]:
    row, inks = _tbt(latency), {"p50": palette.P50, "p99": palette.P99}
    known = {q: row.get(f"{q}_ns") for q in inks}
    return [[ms(ns), q, inks[q]] for q, ns in known.items() if ns]


def _tbt(latency: pa.Table) -> Figure:
    rows = (dict(row) for row in latency.to_pylist() if row["measure"] == "tbt")
    return next(rows, {})
