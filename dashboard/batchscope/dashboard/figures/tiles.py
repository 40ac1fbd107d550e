"""Tiles of the Now page: throughput and goodput, latency, queue, KV pages, trust.

Called by board.py with one Glance; a tile is a label, figures with units, a bar, a sparkline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, first
from batchscope.dashboard.figures.sparks import Grid
from batchscope.dashboard.figures.timeline import kv_percent

Row = dict[str, Any]
GOODPUT_HELP = (
    "By the time requests ended, last minute. A token is on time until its request's arrival + "
    "TTFT bound + its turn x TBT bound."
)
LATENCIES = {
    "interval": ("Interval", "of an iteration: from completion to completion, idle taken out"),
    "ttft": ("Time to first token", "from a request's arrival"),
    "tbt": ("Time between tokens", "of a request, weighted by token"),
}
"""Title of each latency tile, and what it measures."""
AFTER_PREFILL = "from a request's arrival here, after its prefill elsewhere"
"""What TTFT is at the decode engine of a split: not what a client waits."""
OBSERVER_BUDGET = 0.01
"""Share of the interval above which the adapter sheds detail: worth a warning."""


@dataclass(frozen=True)
class Glance:
    """Everything the board is made from: one row each of now and trust, tables, the spark grid."""

    engine: Row
    now: Row
    answers: Mapping[str, pa.Table]
    grid: Grid
    slots: int | None

    def rows(self, name: str) -> list[Row]:
        """An answer as rows."""
        return list(self.answers[name].to_pylist())


def throughput(glance: Glance) -> list[Figure]:
    """Iterations, tokens, and goodput beside them."""
    return [
        _iteration_tile(glance),
        _token_tile(glance),
        _request_goodput_tile(glance),
        _token_goodput_tile(glance),
    ]


def _iteration_tile(glance: Glance) -> Figure:
    spark = glance.grid.rate(glance.rows("timeline_sparks"), "iterations")
    figures = [_figure(glance.now.get("iterations_per_s"), "/s")]
    return _tile("Iterations", figures, spark=[_ink(spark, palette.INTERVAL)])


def _token_tile(glance: Glance) -> Figure:
    rows, inks = glance.rows("timeline_sparks"), palette.PHASES
    figures = [
        _figure(glance.now.get(f"{phase}_tokens_per_s"), "/s", name=phase, colour=inks[phase])
        for phase in ("prefill", "decode")
    ]
    spark = [_ink(_token_rate(glance.grid, rows, phase), ink) for phase, ink in inks.items()]
    return _tile("Tokens scheduled", figures, spark=spark)


def _token_rate(grid: Grid, rows: list[Row], phase: str) -> list[float | None]:
    def tokens(row: Row) -> float:
        mean = row[f"{phase}_tokens_mean"] or 0
        return float(mean * row["iterations"] * 1e9 / grid.bucket_ns)

    return grid.lay(rows, tokens, missing=0.0)


def _request_goodput_tile(glance: Glance) -> Figure:
    """Requests that met their SLO beside all that ended; no SLO, no verdict, no figure."""
    row = first(glance.answers["goodput"])
    judged = not row or row["unjudged"] < row["ended"]
    counts = {"met": row.get("met", 0) if judged else None, "ended": row.get("ended", 0)}
    return _useful_tile(
        glance, "Requests that ended", counts, name="met the SLO", note=_verdicts(row)
    )


def _token_goodput_tile(glance: Glance) -> Figure:
    """Tokens on time beside all tokens of the same requests."""
    row = first(glance.answers["goodput"])
    counts = {name: row.get(name) for name in ("on_time_tokens", "output_tokens")}
    return _useful_tile(
        glance, "Output tokens of ended requests", counts, name="on time", note=_on_time(row)
    )


def _useful_tile(
    glance: Glance, label: str, counts: Mapping[str, int | None], *, name: str, note: str
) -> Figure:
    """The useful part (first of `counts`) in green beside the whole in grey, per second."""
    inks, names = (palette.VERDICTS["met"], palette.INTERVAL), (name, "all")
    window, sparks = glance.now.get("window_s"), glance.rows("goodput_sparks")
    figures = [
        _figure(words.share(count, window), "/s", name=word, colour=ink)
        for count, word, ink in zip(counts.values(), names, inks, strict=True)
    ]
    drawn = zip(counts, inks, strict=True)
    spark = [_ink(glance.grid.rate(sparks, column), ink) for column, ink in drawn]
    return _tile(label, figures, spark=spark[::-1], note=note, help=GOODPUT_HELP)


def _verdicts(row: Row) -> str:
    others = [
        f"{row[v]:,} {v}"
        for v in ("missed", "undetermined", "failed", "aborted", "shed")
        if row.get(v)
    ]
    return ", ".join(others) or (
        "none missed" if row.get("met") else "no verdict in the last minute"
    )


def _on_time(row: Row) -> str:
    ratio = words.share(row.get("on_time_tokens"), row.get("output_tokens"))
    return "no SLO to judge by" if ratio is None else f"{words.percent(ratio)} on time"


def latency(glance: Glance) -> list[Figure]:
    """Interval, TTFT and TBT: p50 and p99."""
    now = {row["measure"]: row for row in glance.rows("latency")}
    sparks, role = glance.rows("latency_sparks"), glance.engine.get("role")
    return [
        {
            **_latency_tile(
                title,
                now.get(measure, {}),
                [r for r in sparks if r["measure"] == measure],
                glance.grid,
            ),
            "about": AFTER_PREFILL if (measure, role) == ("ttft", "decode") else about,
        }
        for measure, (title, about) in LATENCIES.items()
    ]


def _latency_tile(title: str, row: Row, sparks: list[Row], grid: Grid) -> Figure:
    inks = {"p50": palette.P50, "p99": palette.P99}
    figures = []
    for name, ink in inks.items():
        value, unit = words.duration(row.get(f"{name}_ns"))
        figures.append({"value": value, "unit": unit, "name": name, "colour": ink})
    spark = [_ink(grid.plain(sparks, f"{name}_ns"), ink) for name, ink in inks.items()]
    worst = words.duration_text(row.get("max_ns"))
    return _tile(
        title, figures, spark=spark, note=f"max {worst}" if row else "no sample in the last minute"
    )


def queue(glance: Glance) -> list[Figure]:
    """Running under the slot limit, and waiting."""
    return [_running_tile(glance), _waiting_tile(glance)]


def _running_tile(glance: Glance) -> Figure:
    running, ink = glance.now.get("running"), palette.REASONS["max_requests"]
    used = words.share(running, glance.slots)
    bar = None
    if used is not None:
        bar = [{"ratio": used, "colour": ink, "label": f"{words.percent(used)} of slots"}]
    limit = f"of {glance.slots} slots" if glance.slots else ""
    spark = glance.grid.plain(glance.rows("timeline_sparks"), "running_max")
    return _tile("Running", [_figure(running, limit)], bar=bar, spark=[_ink(spark, ink)])


def _waiting_tile(glance: Glance) -> Figure:
    spark = glance.grid.plain(glance.rows("timeline_sparks"), "waiting_max")
    return _tile("Waiting", [_figure(glance.now.get("waiting"), "")], spark=[_ink(spark, "text")])


def pages(glance: Glance) -> list[Figure]:
    """KV occupancy and preemptions."""
    return [_kv_tile(glance), _preemption_tile(glance.now)]


def _kv_tile(glance: Glance) -> Figure:
    now, shares = glance.now, kv_percent(glance.now)
    known = {state: percent / 100 for state, percent in shares.items() if percent is not None}
    parts = [
        {"ratio": ratio, "colour": palette.KV[state], "label": f"{state} {words.percent(ratio)}"}
        for state, ratio in known.items()
    ]
    rows = glance.rows("timeline_sparks")
    spark = glance.grid.lay(rows, lambda row: kv_percent(row)["used"], missing=None)
    peak = words.percent(now.get("kv_used_ratio_max"))
    return _tile(
        "KV blocks used",
        [_figure_text(words.percent(known.get("used")), "")],
        bar=parts,
        spark=[_ink(spark, palette.KV["used"])],
        note=f"{words.percent(known.get('evictable'))} evictable · peak {peak}",
    )


def _preemption_tile(now: Row) -> Figure:
    lost = now.get("preempted_tokens") or 0
    given_up = f"{words.count(lost)} computed tokens" if lost else "no computed token"
    preemptions = [_figure(now.get("preemptions"), "in the last minute")]
    return _tile("Preemptions", preemptions, note=f"{given_up} given up")


def trust(row: Row) -> list[Figure]:
    """Audit, losses and the observer's own cost."""
    return [_audit_tile(row), _loss_tile(row), _observer_tile(row)]


def _audit_tile(row: Row) -> Figure:
    violations = row["violations"] if row["checks"] else None
    return _tile(
        "Audit",
        [_figure(violations, "violations")],
        tone="warn" if violations else "",
        note=row["violated"] or f"in {words.count(row['checks'])} checks against independent facts",
    )


def _loss_tile(row: Row) -> Figure:
    gaps = words.plural(row["losses"], "gap")
    notices = words.plural(row["notices"], "notice")
    parts = [f"in {gaps}" if row["losses"] else "nothing overwritten unread"]
    parts += [f"{notices}: {row['last_notice']}"] if row["notices"] else []
    return _tile(
        "Lost records",
        [_figure(row["lost_records"], "since attach")],
        tone="warn" if row["lost_records"] or row["notices"] else "",
        note=" · ".join(parts),
    )


def _observer_tile(row: Row) -> Figure:
    cost, unit = words.duration(row["observer_p50_ns"])
    p99, share = words.duration_text(row["observer_p99_ns"]), _cost(row["observer_ratio"])
    dear = (row["observer_ratio"] or 0) > OBSERVER_BUDGET
    above = f", above {OBSERVER_BUDGET:.0%} of the interval".replace("%", " %") if dear else ""
    return _tile(
        "Observer",
        [_figure_text(cost, f"{unit} p50".strip())],
        tone="warn" if dear else "",
        note=f"p99 {p99} · {share}{above or ' of the interval'}",
    )


def _cost(ratio: float | None) -> str:
    return words.DASH if ratio is None else f"{ratio * 100:.2g} %"


def _tile(label: str, figures: list[Figure], **more: Any) -> Figure:
    return {"label": label, "figures": figures, **{k: v for k, v in more.items() if v is not None}}


def _figure(
    value: float | None, unit: str, *, name: str | None = None, colour: str | None = None
) -> Figure:
    return {**_figure_text(words.count(value), unit), "name": name, "colour": colour}


def _figure_text(value: str, unit: str) -> Figure:
    return {"value": value, "unit": unit}


def _ink(values: list[float | None], colour: str) -> Figure:
    return {"values": values, "colour": colour}
