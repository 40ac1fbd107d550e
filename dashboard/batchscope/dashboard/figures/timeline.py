"""The panes of the Iterations view: tokens, interval, slots, queue, KV pages, on one time axis.

Input are answers of the queries timeline, deferrals_by_reason, admission_stops, marks_and_losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, ms
from batchscope.dashboard.figures.strip import stops_strip

Row = dict[str, Any]
Values = list[float | None]
BREAK_BUCKETS = 4
"""A hole wider than this many buckets (and than two of the intervals around) is drawn as a hole."""


def timeline(
    answers: dict[str, pa.Table],
    *,
    from_ns: int,
    to_ns: int,
    slots: int | None,
    window: tuple[int, int] | None = None,
) -> Figure:
    """All panes, the strip of admission stops, shaded losses and marks.

    `slots` is the engine's limit on running requests where its configuration tells; `window` is
    the stretch that the swimlane below shows, when it is shorter than the range.
    """
    rows = with_breaks(answers["timeline"].to_pylist())
    shades, marks = marks_and_shades(answers["marks_and_losses"], to_ns=to_ns)
    panes = [
        tokens_pane(rows),
        interval_pane(rows),
        slots_pane(rows, slots=slots),
        queue_pane(rows, answers["deferrals_by_reason"]),
        kv_pane(rows),
    ]
    x = [ms(row["unix_ns"]) for row in rows]
    return {
        "range": [ms(from_ns), ms(to_ns)],
        "panes": [{"x": x, **pane} for pane in panes],
        "strip": stops_strip(answers["admission_stops"], shades),
        "shades": shades,
        "marks": marks,
        "window": [ms(at) for at in window] if window else None,
    }


def with_breaks(rows: Sequence[Row]) -> list[Row]:
    """Rows with an all-None row in each hole (idle or lost), so that no line bridges it, and with
    the beginning of each row that follows none: a step is drawn from the point before, so an
    iteration between two holes would not be seen at all.
    """
    broken: list[Row] = []
    for row in rows:
        if not broken:
            broken.append(_beginning(row))
        elif _starts(row) - broken[-1]["unix_ns"] > BREAK_BUCKETS * row["bucket_ns"]:
            begins = _beginning(row)
            hole = {"unix_ns": (broken[-1]["unix_ns"] + begins["unix_ns"]) // 2}
            broken += [hole, begins]
        broken.append(row)
    return broken


def _beginning(row: Row) -> Row:
    """The row once more where its first iteration began, at least a bucket earlier."""
    longest = max(row["bucket_ns"], row["interval_max_ns"] or 0)
    return {**row, "unix_ns": int(row["unix_ns"] - longest), "ends_unix_ns": row["unix_ns"]}


def _starts(row: Row) -> int:
    return int(row["unix_ns"] - max(row["bucket_ns"], 2 * (row["interval_max_ns"] or 0)))


def tokens_pane(rows: Sequence[Row]) -> Figure:
    """Mean tokens per iteration, stacked, under the budget; the fullest iteration as a line."""
    per_bucket = max((row.get("iterations") or 0 for row in rows), default=0)
    fullest = _line(rows, "batch_tokens_max", "fullest iteration", "pale", width=1, stepped=True)
    return {
        "title": "Tokens per iteration",
        "format": "tokens",
        "height": 150,
        "note": _mean_note(per_bucket),
        "series": [
            _area(rows, "decode_tokens_mean", "decode", palette.PHASES["decode"]),
            _area(rows, "prefill_tokens_mean", "prefill", palette.PHASES["prefill"]),
            *([fullest] if per_bucket > 1 else []),
            _line(rows, "budget_tokens", "token budget", "text", dash=[6, 4], width=1.25),
        ],
    }


def _mean_note(per_bucket: int) -> str:
    if per_bucket <= 1:
        return "each iteration"
    return f"mean of up to {words.plural(per_bucket, 'iteration')} a point"


def interval_pane(rows: Sequence[Row]) -> Figure:
    """Smallest to largest interval as a band, the mean as a line, in ms."""

    def scaled(name: str) -> Values:
        return _values(rows, name, lambda ns: ms(float(ns)))

    ink = palette.INTERVAL
    return {
        "title": "Interval",
        "format": "ms",
        "height": 110,
        "note": "host and execution between completions, idle taken out",
        "series": [
            {
                "label": "min",
                "values": scaled("interval_min_ns"),
                "colour": ink,
                "edge": "min",
                "stepped": True,
            },
            {
                "label": "max",
                "values": scaled("interval_max_ns"),
                "colour": ink,
                "edge": "max",
                "stepped": True,
            },
            {
                "label": "mean",
                "values": scaled("interval_mean_ns"),
                "colour": ink,
                "width": 1.5,
                "stepped": True,
            },
        ],
    }


def slots_pane(rows: Sequence[Row], *, slots: int | None) -> Figure:
    """Requests running, under the engine's limit where known: slot-bound shows as a plateau."""
    running = {
        **_line(rows, "running_max", "running", palette.REASONS["max_requests"]),
        "stepped": True,
    }
    series = [running]
    if slots is not None:
        limit = [slots] * len(rows)
        series.append({"label": "slots", "values": limit, "colour": "text", "dash": [6, 4]})
    return {
        "title": "Running requests",
        "format": "requests",
        "height": 80,
        "series": series,
        "note": "limit not told by the engine" if slots is None else "",
        **({"top": slots * 1.08} if slots is not None else {}),
    }


def queue_pane(rows: Sequence[Row], deferrals: pa.Table) -> Figure:
    """Requests left out of a decision, stacked by reason, under those waiting."""
    by_reason: dict[str, dict[int, float]] = {}
    for row in deferrals.to_pylist():
        by_reason.setdefault(row["reason"], {})[row["unix_ns"]] = row["left_out_mean"]
    areas = [
        {
            "label": words.reason(reason),
            "colour": palette.reason_colour(reason),
            "stacked": True,
            "values": [_left_out(row, by_reason[reason]) for row in rows],
        }
        for reason in sorted(by_reason, key=palette.reason_rank)
    ]
    return {
        "title": "Waiting and left out",
        "format": "requests",
        "height": 120,
        "note": "per decision, by reason" if areas else "nobody was left out",
        "series": [*areas, _line(rows, "waiting_mean", "waiting", "text", stepped=True)],
    }


def _left_out(row: Row, at: dict[int, float]) -> float | None:
    """0 is known where decisions were seen and none left anyone out for that reason."""
    if row.get("iterations") is None:
        return None
    return at.get(row.get("ends_unix_ns") or row["unix_ns"], 0.0)


def kv_pane(rows: Sequence[Row]) -> Figure:
    """Used, evictable and free blocks as shares of the pool."""
    total = max((row.get("kv_total_blocks") or 0 for row in rows), default=0)
    return {
        "title": "KV blocks",
        "format": "percent",
        "height": 100,
        "top": 100,
        "note": f"of {total:,} blocks" if total else "not told by the engine",
        "series": [
            {
                "label": state,
                "colour": palette.KV[state],
                "stacked": True,
                "values": [kv_percent(row)[state] for row in rows],
            }
            for state in ("used", "evictable", "free")
        ],
    }


def kv_percent(row: Row) -> dict[str, float | None]:
    """Shares of the pool in percent; all None where a part is unknown."""
    total, used = row.get("kv_total_blocks"), row.get("kv_used_blocks")
    if not total or used is None:
        return dict.fromkeys(("used", "evictable", "free"))
    evictable = row.get("kv_evictable_blocks")
    known = evictable or 0
    return {
        "used": 100 * used / total,
        "evictable": None if evictable is None else 100 * evictable / total,
        "free": 100 * (total - used - known) / total,
    }


def marks_and_shades(table: pa.Table, *, to_ns: int) -> tuple[list[list[Any]], list[list[Any]]]:
    """Losses as shaded stretches [from, to, label], everything else as lines [at, label]."""
    shades, marks = [], []
    for row in table.to_pylist():
        if row["kind"] == "loss":
            until = row["until_unix_ns"] or to_ns
            shades.append([ms(row["unix_ns"]), ms(until), _loss_label(row)])
        else:
            marks.append([ms(row["unix_ns"]), row["text"] or row["kind"]])
    return shades, marks


def _loss_label(row: Row) -> str:
    if row["iterations"] is None:
        return f"{words.plural(row['records'], 'record')} lost"
    return f"{words.plural(row['iterations'], 'iteration')} lost"


def slots_of(config: dict[str, Any]) -> int | None:
    """The limit on running requests in an engine's configuration, under the names engines use."""
    names = ("max_num_seqs", "max_requests", "max_running_requests", "max_concurrent_requests")
    known = (config.get(name) for name in names)
    return next((int(value) for value in known if isinstance(value, int | float)), None)


def _area(rows: Sequence[Row], name: str, label: str, colour: str) -> Figure:
    return {"label": label, "values": _values(rows, name), "colour": colour, "stacked": True}


def _line(rows: Sequence[Row], name: str, label: str, colour: str, **style: Any) -> Figure:
    return {"label": label, "values": _values(rows, name), "colour": colour, **style}


def _values(rows: Sequence[Row], name: str, scale: Callable[[Any], float] | None = None) -> Values:
    raw = (row.get(name) for row in rows)
    return [None if v is None else (scale(v) if scale else v) for v in raw]
