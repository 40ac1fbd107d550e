"""Every figure of an engine under its name in the catalogue, unscaled: what /metrics and OTLP show.

The fold counted most; HELLO tells the rest; and what has not happened yet is a true 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from batchscope.schemas.reasons import FinishReason, NoticeKind, Provides, Verdict
from batchscope.schemas.records import NULL64

Series = tuple[str, tuple[str, ...]]
"""Name in the catalogue, values of the metric's own labels."""
Values = Mapping[Series, float]
COUNTED_BY_US = (
    *("lost_records", "lost_iterations", "rejected_records", "unresolved_members"),
    *("clamped_durations", "requests_arrived", "output_tokens"),
)
"""Counters without labels that every adapter makes possible."""
OF_PREEMPTIONS = ("preemptions", "preemption_lost_tokens", "recomputed_tokens")
MAX_SETTINGS = 64


class Histogram(Protocol):
    """Counts per bucket (the last: above all bounds) and the sum in the counted unit."""

    @property
    def counts(self) -> Any:
        """Integers, one more than the metric has bounds."""

    @property
    def sum(self) -> int:
        """Sum of all observations, unscaled."""


class Totals(Protocol):
    """What has been counted since the engine's first ring."""

    @property
    def counters(self) -> Values:
        """Unscaled."""

    @property
    def histograms(self) -> Mapping[Series, Histogram]:
        """Unscaled."""


class View(Protocol):
    """One engine as the pipeline shows it: a snapshot that no other thread changes."""

    @property
    def labels(self) -> Mapping[str, str | None]:
        """Values of ENGINE_LABELS; None: unknown, and the label is left out."""

    @property
    def hello(self) -> Mapping[str, Any]:
        """HELLO of its newest ring."""

    @property
    def state(self) -> str:
        """Live, closed or dead."""

    @property
    def totals(self) -> Totals:
        """Counters and histograms."""

    @property
    def gauges(self) -> Values:
        """Unscaled; NULL64 is left out."""


def plain(view: View) -> dict[Series, float]:
    """Counters, gauges and infos of an engine; the fold's word goes before HELLO's."""
    return {**_zeros(view), **_about(view), **view.gauges, **view.totals.counters}


def _zeros(view: View) -> dict[Series, float]:
    """Counters that start at a true 0: a series that begins at 1 hides that from increase()."""
    preempted = (view.hello.get("provides") or {}).get("preempted.lost_tokens", Provides.ABSENT)
    return {
        **{(name, ()): 0 for name in COUNTED_BY_US},
        **{(name, ()): 0 for name in OF_PREEMPTIONS if preempted != Provides.ABSENT},
        **{("requests_finished", (reason.value,)): 0 for reason in FinishReason},
        **{("notices", (kind.value,)): 0 for kind in NoticeKind},
        **dict.fromkeys(_implied(view.totals.counters), 0),
    }


def _implied(counters: Values) -> Iterator[Series]:
    """Series that others imply: without `met` at 0, who misses all has no attainment at all."""
    for name, labels in counters:
        if name == "audit_checks":
            yield "audit_violations", labels
        elif name == "slo_requests":
            yield "on_time_tokens", labels[:1]
            yield from (("slo_requests", (labels[0], verdict.value)) for verdict in Verdict)


def _about(view: View) -> dict[Series, float]:
    """What HELLO says of an engine: version, start, numeric settings; and whether it lives."""
    hello = view.hello
    known = (str(hello.get("version") or ""), str(hello.get("config_hash") or ""))
    values: dict[Series, float] = {
        ("engine_info", known): 1,
        ("engine_up", ()): int(view.state == "live"),
        ("engine_start_time_seconds", ()): hello.get("unix_ns", NULL64),
    }
    numeric = {k: v for k, v in (hello.get("config") or {}).items() if isinstance(v, int | float)}
    settings = sorted(numeric)[:MAX_SETTINGS]
    return values | {("engine_config", (name,)): numeric[name] for name in settings}
