"""The Now page as one figure: is it alive, how fast, how late, who waits for what, was it useful.

Input are answers of the queries now, latency, timeline, goodput, deferrals_by_reason,
admission_stops, marks_and_losses and trust; see views/now.py for their ranges.
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
STALLED_NS = 5_000_000_000
"""Work is there and nothing completed for this long: the engine counts as stalled."""
HELD = 0.05
"""Admission counts as held back when more than this share of decisions stopped for a reason."""


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


def board(glance: Glance) -> Figure:
    """Component data for timeline.board."""
    return {
        "status": status(glance.engine, glance.now),
        "groups": [
            _group("What holds admission back, last minute", 7, [bound(glance)]),
            _group("Who is left out, last minute", 5, [left_out(glance)]),
            _group("Throughput, and how much of it was useful", 12, throughput(glance)),
            _group("Latency, last minute", 7, latency(glance)),
            _group("Queue", 5, queue(glance)),
            _group("KV pages", 5, pages(glance)),
            _group("Can this be believed?", 7, trust(first(glance.answers["trust"]))),
        ],
    }


def _group(title: str, width: int, tiles: list[Figure]) -> Figure:
    return {"title": title, "width": width, "tiles": tiles}


def status(engine: Row, now: Row) -> Figure:
    """Alive, idle, stalled, or gone; when the last iteration completed; which model."""
    tone, state = liveness(engine, now)
    last = engine["last_iteration_unix_ns"]
    age = None if last is None else max(0, engine["server_unix_ns"] - last)
    seen = "no iteration yet" if age is None else f"last iteration {words.duration_text(age)} ago"
    version = " ".join(filter(None, (engine["kind"], engine["version"])))
    restarts = f" · {words.plural(engine['rings'] - 1, 'restart')}" if engine["rings"] > 1 else ""
    return {"tone": tone, "state": state, "detail": f"{seen} · {version}{restarts}", "model": engine["model_name"] or ""}


def liveness(engine: Row, now: Row) -> tuple[str, str]:
    """(tone, words) of the status line."""
    if engine["state"] != "live":
        return "dead", {"closed": "Detached", "dead": "Gone without goodbye"}.get(engine["state"], engine["state"])
    last = engine["last_iteration_unix_ns"]
    quiet = last is None or engine["server_unix_ns"] - last > STALLED_NS
    if quiet and (now.get("waiting") or now.get("in_flight")):
        return "stalled", "Stalled: work is there, nothing completes"
    return ("idle", "Idle") if quiet else ("live", "Live")


def bound(glance: Glance) -> Figure:
    """Where admission stopped, decision by decision, with the limits beside it."""
    stops = {row["admission_stop"]: row["decisions"] for row in glance.rows("admission_stops")}
    decisions = sum(stops.values())
    parts = [
        {"label": words.reason(stop), "colour": palette.reason_colour(stop), "ratio": n / decisions,
         "text": words.percent(n / decisions)}
        for stop, n in sorted(stops.items(), key=lambda item: (item[0] is None, -item[1]))
    ]
    return {"kind": "bound", "headline": headline(stops), "evidence": evidence(glance), "parts": parts}


def headline(stops: Mapping[str | None, int]) -> str:
    """The most frequent stop in one sentence."""
    decisions = sum(stops.values())
    if not decisions:
        return "No decision in the last minute"
    named = {stop: n for stop, n in stops.items() if stop is not None}
    leading = max(named, key=lambda stop: named[stop], default=None)
    if leading is None or named[leading] < HELD * decisions:
        return "Nothing holds admission back"
    return f"Held by {words.reason(leading)} in {words.percent(named[leading] / decisions)} of decisions"


def evidence(glance: Glance) -> str:
    """The three limits side by side, so that a low KV figure can't hide a full set of slots."""
    now = glance.now
    slots = f" of {glance.slots}" if glance.slots else ""
    kv = words.share(now.get("kv_used_blocks"), now.get("kv_total_blocks"))
    return " · ".join((
        f"running {words.count(now.get('running'))}{slots} slots" if slots else f"running {words.count(now.get('running'))}",
        f"KV {words.percent(kv)} used",
        f"batches {words.percent(now.get('budget_used_ratio'))} of the token budget",
        f"{words.count(now.get('waiting'))} waiting",
    ))


def left_out(glance: Glance) -> Figure:
    """Mean requests left out per decision, by reason."""
    rows = sorted(glance.rows("deferrals_by_reason"), key=lambda row: -row["left_out_mean"])
    top = max((row["left_out_mean"] for row in rows), default=1.0) or 1.0
    return {
        "kind": "reasons", "label": "Requests left out per decision · share of decisions", "empty": "Nobody was left out.",
        "help": "Mean over all decisions, and the share of decisions that left anyone out for that reason",
        "rows": [
            {"label": words.reason(row["reason"]), "colour": palette.reason_colour(row["reason"]),
             "ratio": row["left_out_mean"] / top,
             "text": f"{words.mean(row['left_out_mean'])} · {words.percent(row['decisions_with'] / row['decisions'])}"}
            for row in rows[:5]
        ],
    }


def throughput(glance: Glance) -> list[Figure]:
    """Iterations, tokens, and goodput beside them."""
    now, grid, rows = glance.now, glance.grid, glance.rows("timeline_sparks")
    return [
        _tile("Iterations", [_figure(now.get("iterations_per_s"), "/s")],
              spark=[_ink(grid.rate(rows, "iterations"), palette.INTERVAL)]),
        _tile("Tokens scheduled", [
            _figure(now.get("prefill_tokens_per_s"), "/s", name="prefill", colour=palette.PHASES["prefill"]),
            _figure(now.get("decode_tokens_per_s"), "/s", name="decode", colour=palette.PHASES["decode"]),
        ], spark=[_ink(_product_rate(grid, rows, phase), palette.PHASES[phase]) for phase in palette.PHASES]),
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
        _tile("Requests that ended", [
            _figure(words.share(met, window), "/s", name="met the SLO", colour=ink),
            _figure(words.share(ended, window), "/s", name="all", colour=all_ink),
        ], spark=[_ink(grid.rate(sparks, "ended"), all_ink), _ink(grid.rate(sparks, "met"), ink)],
            note=_verdicts(row), help="By the time they ended, last minute"),
        _tile("Output tokens of those", [
            _figure(words.share(row.get("on_time_tokens"), window), "/s", name="on time", colour=ink),
            _figure(words.share(row.get("output_tokens"), window), "/s", name="all", colour=all_ink),
        ], spark=[_ink(grid.rate(sparks, "output_tokens"), all_ink), _ink(grid.rate(sparks, "on_time_tokens"), ink)],
            note=_on_time(row), help="A token is on time until arrival + TTFT bound + its turn x TBT bound"),
    ]


def _verdicts(row: Row) -> str:
    others = [f"{row[v]:,} {v}" for v in ("missed", "undetermined", "failed", "aborted", "shed") if row.get(v)]
    return ", ".join(others) or ("none missed" if row.get("met") else "no verdict in the last minute")


def _on_time(row: Row) -> str:
    ratio = words.share(row.get("on_time_tokens"), row.get("output_tokens"))
    return "no SLO to judge by" if ratio is None else f"{words.percent(ratio)} on time"


def latency(glance: Glance) -> list[Figure]:
    """Interval, TTFT and TBT: p50 and p99."""
    now = {row["measure"]: row for row in glance.rows("latency")}
    sparks = glance.rows("latency_sparks")
    names = (("interval", "Interval"), ("ttft", "Time to first token"), ("tbt", "Time between tokens"))
    return [_latency_tile(title, now.get(measure, {}), [r for r in sparks if r["measure"] == measure], glance.grid)
            for measure, title in names]


def _latency_tile(title: str, row: Row, sparks: list[Row], grid: Grid) -> Figure:
    inks = {"p50": palette.P50, "p99": palette.P99}
    figures = []
    for name, ink in inks.items():
        value, unit = words.duration(row.get(f"{name}_ns"))
        figures.append({"value": value, "unit": unit, "name": name, "colour": ink})
    spark = [_ink(grid.plain(sparks, f"{name}_ns"), ink) for name, ink in inks.items()]
    worst = words.duration_text(row.get("max_ns"))
    return _tile(title, figures, spark=spark, note=f"max {worst}" if row else "no sample in the last minute")


def queue(glance: Glance) -> list[Figure]:
    """Running under the slot limit, and waiting."""
    now, grid, rows = glance.now, glance.grid, glance.rows("timeline_sparks")
    used = words.share(now.get("running"), glance.slots)
    ink = palette.REASONS["max_requests"]
    slots = [{"ratio": used, "colour": ink, "label": f"{words.percent(used)} of slots"}] if used is not None else None
    return [
        _tile("Running", [_figure(now.get("running"), f"of {glance.slots} slots" if glance.slots else "")],
              bar=slots, spark=[_ink(grid.plain(rows, "running_max"), ink)]),
        _tile("Waiting", [_figure(now.get("waiting"), "")], spark=[_ink(grid.plain(rows, "waiting_max"), "text")]),
    ]


def pages(glance: Glance) -> list[Figure]:
    """KV occupancy and preemptions."""
    now, rows = glance.now, glance.rows("timeline_sparks")
    shares = kv_percent(now)
    parts = [{"ratio": (share or 0) / 100, "colour": palette.KV[state], "label": f"{state} {words.percent((share or 0) / 100)}"}
             for state, share in shares.items()]
    kv = words.share(now.get("kv_used_blocks"), now.get("kv_total_blocks"))
    spark = glance.grid.lay(rows, lambda row: kv_percent(row)["used"], missing=None)
    evictable = words.share(now.get("kv_evictable_blocks"), now.get("kv_total_blocks"))
    lost = now.get("preempted_tokens") or 0
    return [
        _tile("KV blocks used", [_figure_text(words.percent(kv), "")], bar=parts, spark=[_ink(spark, palette.KV["used"])],
              note=f"{words.percent(evictable)} evictable · peak {words.percent(now.get('kv_used_ratio_max'))}"),
        _tile("Preemptions", [_figure(now.get("preemptions"), "in the last minute")],
              note=f"{words.count(lost)} computed tokens given up" if lost else "no computed token given up"),
    ]


def trust(row: Row) -> list[Figure]:
    """Audit, losses and the observer's own cost."""
    checks, violations = row["checks"] or 0, row["violations"] or 0
    cost, unit = words.duration(row["observer_p50_ns"])
    return [
        _tile("Audit", [_figure(violations if checks else None, "violations")], tone="warn" if violations else "",
              note=row["violated"] or f"in {words.count(checks)} checks against independent facts"),
        _tile("Lost records", [_figure(row["lost_records"], "since attach")], tone="warn" if row["lost_records"] else "",
              note=_losses(row)),
        _tile("Observer", [{"value": cost, "unit": f"{unit} p50".strip()}],
              note=f"p99 {words.duration_text(row['observer_p99_ns'])} · {_cost(row['observer_ratio'])} of the interval",
              tone="warn" if (row["observer_ratio"] or 0) > 0.01 else ""),
    ]


def _losses(row: Row) -> str:
    said = f" · {words.plural(row['notices'], 'notice')}: {row['last_notice']}" if row["notices"] else ""
    return (f"in {words.plural(row['losses'], 'gap')}" if row["losses"] else "nothing overwritten unread") + said


def _cost(ratio: float | None) -> str:
    return words.DASH if ratio is None else f"{ratio * 100:.2g} %"


def _tile(label: str, figures: list[Figure], **more: Any) -> Figure:
    return {"label": label, "figures": figures, **{k: v for k, v in more.items() if v is not None}}


def _figure(value: float | None, unit: str, *, name: str | None = None, colour: str | None = None) -> Figure:
    return {**_figure_text(words.count(value), unit), "name": name, "colour": colour}


def _figure_text(value: str, unit: str) -> Figure:
    return {"value": value, "unit": unit}


def _ink(values: list[float | None], colour: str) -> Figure:
    return {"values": values, "colour": colour}
