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
    now, grid, rows = glance.now, glance.grid, glance.rows("timeline_sparks")
    return [
        _tile(
            "Iterations",
            [_figure(now.get("iterations_per_s"), "/s")],
            spark=[_ink(grid.rate(rows, "iterations"), palette.INTERVAL)],
        ),
        _tile(
            "Tokens scheduled",
            [
                _figure(
                    now.get("prefill_tokens_per_s"),
                    "/s",
                    name="prefill",
                    colour=palette.PHASES["prefill"],
                ),
                _figure(
                    now.get("decode_tokens_per_s"),
                    "/s",
                    name="decode",
                    colour=palette.PHASES["decode"],
                ),
            ],
            spark=[
                _ink(_product_rate(grid, rows, phase), palette.PHASES[phase])
                for phase in palette.PHASES
            ],
        ),
        *goodput(glance),
    ]


def _product_rate(grid: Grid, rows: list[Row], phase: str) -> list[float | None]:
    def tokens(row: Row) -> float:
        return float((row[f"{phase}_tokens_mean"] or 0) * row["iterations"] * 1e9 / grid.bucket_ns)

    return grid.lay(rows, tokens, missing=0.0)


def goodput(glance: Glance) -> list[Figure]:
    """Requests that met their SLO beside all that ended; tokens on time beside all of theirs."""
    row, window = first(glance.answers["goodput"]), glance.now.get("window_s")
    ended, judged = row.get("ended", 0), not row or row["unjudged"] < row["ended"]
    met = row.get("met", 0) if judged else None
    sparks, grid = glance.rows("goodput_sparks"), glance.grid
    ink, all_ink = palette.VERDICTS["met"], palette.INTERVAL
    return [
        _tile(
            "Requests that ended",
            [
                _figure(words.share(met, window), "/s", name="met the SLO", colour=ink),
                _figure(words.share(ended, window), "/s", name="all", colour=all_ink),
            ],
            spark=[_ink(grid.rate(sparks, "ended"), all_ink), _ink(grid.rate(sparks, "met"), ink)],
            note=_verdicts(row),
            help="By the time they ended, last minute",
        ),
        _tile(
            "Output tokens of those",
            [
                _figure(
                    words.share(row.get("on_time_tokens"), window), "/s", name="on time", colour=ink
                ),
                _figure(
                    words.share(row.get("output_tokens"), window), "/s", name="all", colour=all_ink
                ),
            ],
            spark=[
                _ink(grid.rate(sparks, "output_tokens"), all_ink),
                _ink(grid.rate(sparks, "on_time_tokens"), ink),
            ],
            note=_on_time(row),
            help="A token is on time until arrival + TTFT bound + its turn x TBT bound",
        ),
    ]


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
    sparks = glance.rows("latency_sparks")
    names = (
        ("interval", "Interval"),
        ("ttft", "Time to first token"),
        ("tbt", "Time between tokens"),
    )
    return [
        _latency_tile(
            title, now.get(measure, {}), [r for r in sparks if r["measure"] == measure], glance.grid
        )
        for measure, title in names
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
    now, grid, rows = glance.now, glance.grid, glance.rows("timeline_sparks")
    used = words.share(now.get("running"), glance.slots)
    ink = palette.REASONS["max_requests"]
    slots = (
        [{"ratio": used, "colour": ink, "label": f"{words.percent(used)} of slots"}]
        if used is not None
        else None
    )
    return [
        _tile(
            "Running",
            [_figure(now.get("running"), f"of {glance.slots} slots" if glance.slots else "")],
            bar=slots,
            spark=[_ink(grid.plain(rows, "running_max"), ink)],
        ),
        _tile(
            "Waiting",
            [_figure(now.get("waiting"), "")],
            spark=[_ink(grid.plain(rows, "waiting_max"), "text")],
        ),
    ]


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
    return _tile(
        "Observer",
        [_figure_text(cost, f"{unit} p50".strip())],
        tone="warn" if (row["observer_ratio"] or 0) > OBSERVER_BUDGET else "",
        note=f"p99 {p99} · {share} of the interval",
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
