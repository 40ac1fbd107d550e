"""Engines as the pipeline shows them, made by hand: every family of the catalogue has a series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from batchscope.schemas import reasons
from batchscope.schemas.catalogue import METRICS, Metric

LABEL_VALUES: dict[str, tuple[str, ...]] = {
    "phase": ("decode", "mixed", "prefill"),
    "reason": ("kv_blocks", "max_requests", "token_budget"),
    "state": ("used", "evictable", "free"),
    "slo": ("demo",),
    "verdict": tuple(word.value for word in reasons.Verdict),
    "term": ("ttft", "tbt_p99"),
    "kind": ("info",),
    "law": ("tokens_emitted", "batch_within_budget"),
    "table": ("iterations", "runs"),
    "result": ("exported", "dropped"),
    "part": ("store",),
    "device": ("0",),
    "setting": ("max_requests",),
    "version": ("1",),
    "config_hash": ("abcd",),
    "schema_version": ("1",),
}
FINISH = tuple(word.value for word in reasons.FinishReason)


@dataclass
class Counts:
    counts: Any
    sum: int


@dataclass
class Totals:
    counters: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    histograms: dict[tuple[str, tuple[str, ...]], Counts] = field(default_factory=dict)


@dataclass
class View:
    labels: dict[str, str | None]
    hello: dict[str, Any]
    state: str = "live"
    totals: Totals = field(default_factory=Totals)
    gauges: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)


def label_sets(metric: Metric) -> list[tuple[str, ...]]:
    values = {**LABEL_VALUES, "reason": FINISH} if "finished" in metric.name else LABEL_VALUES
    return list(product(*(values[label] for label in metric.labels)))


def series(
    scope: str, kinds: tuple[str, ...], value: Callable[[Metric], float]
) -> dict[tuple[str, tuple[str, ...]], float]:
    chosen = [m for m in METRICS if m.scope == scope and m.kind in kinds]
    return {(m.name, labels): value(m) for m in chosen for labels in label_sets(m)}


def full_view(number: int, *, count: int = 12_345, now_ns: int = 10**18) -> View:
    """An engine that has counted `count` of everything; gauges in their own scale."""
    rng = np.random.default_rng(number)
    histograms = {
        (m.name, labels): Counts(
            rng.integers(0, count, len(m.buckets) + 1), round(count / (20 * m.scale))
        )
        for m in METRICS
        if m.kind == "histogram"
        for labels in label_sets(m)
    }
    counters = series("engine", ("counter",), lambda m: round(count / m.scale))
    gauges = series("engine", ("gauge",), lambda m: now_ns if "timestamp" in m.name else 3)
    return View(
        {
            "engine": f"mini-{number}",
            "model_name": "llama-tiny",
            "dp_rank": str(number),
            "role": "both",
        },
        {
            "engine": f"mini-{number}",
            "kind": "mini",
            "model_name": "llama-tiny",
            "version": "1.0",
            "config_hash": "abcd",
            "unix_ns": now_ns,
            "config": {"block": 16},
        },
        totals=Totals(counters, histograms),
        gauges=gauges,
    )


def exporter_values() -> dict[tuple[str, tuple[str, ...]], float]:
    own = ("build_info", "collector_duration_seconds")
    values = series("exporter", ("counter", "gauge"), lambda m: round(5 / m.scale))
    return {key: value for key, value in values.items() if key[0] not in own}


def gpu_values() -> dict[tuple[str, tuple[str, ...]], float]:
    return series("gpu", ("gauge",), lambda m: 0.5 if "ratio" in m.name else 250)
