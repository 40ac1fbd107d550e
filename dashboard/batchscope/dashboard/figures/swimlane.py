"""The membership swimlane: one row per request, one cell per iteration it is a member of.

Input are answers of the queries iteration_rows, membership and preemption_marks over one stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, column, ms

Row = dict[str, Any]
SERVED = frozenset({"stop", "length"})
MOST_ROWS = 60
MOST_ITERATIONS = 240
"""Beyond these, neither names nor cells can be told apart on a 1280 px page."""


def swimlane(
    iterations: pa.Table,
    members: pa.Table,
    preemptions: pa.Table,
    *,
    shown: tuple[int, int],
    selected: tuple[int, int] | None = None,
) -> Figure:
    """Rows in order of serial over `shown` (unix ns); `selected` is (ring_id, iteration_id)."""
    steps, lost = iterations.to_pylist(), _by_request(preemptions.to_pylist())
    rings = sorted({row["ring_id"] for row in steps})
    spans = _ends(steps)
    lanes = [
        _lane(runs, lost.get(request, ()), ring=rings.index(request[0]), spans=spans)
        for request, runs in _by_request(members.to_pylist()).items()
    ]
    return {
        "range": [ms(shown[0]), ms(shown[1])],
        "rings": [str(ring) for ring in rings],
        "iterations": [[_span(row) for row in steps if row["ring_id"] == ring] for ring in rings],
        "rows": lanes,
        "selected": _selected(selected, rings),
        "colours": {**palette.PHASES, "preemption": palette.REASONS["preemption"]},
    }


def _selected(selected: tuple[int, int] | None, rings: Sequence[int]) -> list[int] | None:
    known = selected is not None and selected[0] in rings
    return [rings.index(selected[0]), selected[1]] if selected and known else None


def extent(iterations: pa.Table) -> tuple[int, int]:
    """From the start of the first iteration to the end of the last, unix ns; (0, 1) of nothing."""
    rows = iterations.to_pylist()
    if not rows:
        return 0, 1
    return min(map(started, rows)), max(row["unix_ns"] for row in rows) + 1


def started(row: Row) -> int:
    """Where an iteration's cell begins: its interval before its completion."""
    span = row["interval_ns"]
    return int(row["scheduled_unix_ns"] if span is None else row["unix_ns"] - span)


def left_out(iterations: pa.Table, members: pa.Table) -> str:
    """One sentence about what the swimlane does not show; empty when it shows everything."""
    shown = len(
        {(r["ring_id"], r["serial"]) for r in members.select(["ring_id", "serial"]).to_pylist()}
    )
    requests = max(column(members, "in_range"), default=0)
    steps = max(column(iterations, "in_range"), default=0)
    parts = []
    if steps > iterations.num_rows:
        parts.append(
            f"{iterations.num_rows:,} of {words.plural(steps, 'iteration')} in the range, "
            "dotted lines above: click a pane to move there, drag to zoom"
        )
    if requests > shown:
        parts.append(
            f"{shown} of {words.plural(requests, 'request')}, those that join, leave or "
            "prefill here first"
        )
    return "; ".join(parts)


def _by_request(rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
    grouped: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["ring_id"], row["serial"]), []).append(row)
    return grouped


def _span(row: Row) -> list[Any]:
    return [row["iteration_id"], ms(started(row)), ms(row["unix_ns"])]


def _ends(rows: Sequence[Row]) -> dict[tuple[int, int], tuple[int, int]]:
    return {(row["ring_id"], row["iteration_id"]): (started(row), row["unix_ns"]) for row in rows}


def _lane(
    runs: list[Row],
    preempted: Sequence[Row],
    *,
    ring: int,
    spans: dict[tuple[int, int], tuple[int, int]],
) -> Figure:
    one = runs[0]
    return {
        "label": f"#{one['serial']}",
        "about": _about(one),
        "ring": ring,
        "arrived": None if one["arrived_unix_ns"] is None else ms(one["arrived_unix_ns"]),
        "finished": None if one["finished_unix_ns"] is None else ms(one["finished_unix_ns"]),
        "served": one["finish_reason"] in SERVED,
        "runs": [_run(run) for run in runs],
        "absent": [[ms(a), ms(b)] for a, b in absences(runs, spans)],
        "preemptions": [ms(row["unix_ns"]) for row in preempted],
    }


def absences(
    runs: Sequence[Row], spans: dict[tuple[int, int], tuple[int, int]]
) -> list[tuple[int, int]]:
    """Stretches in which a request was there but no member: from its arrival, and between runs."""
    edges = [(_edge(run, 0, spans), _edge(run, run["n_iterations"] - 1, spans)) for run in runs]
    known = [(a[0], b[1]) for a, b in edges if a and b]
    if not known:
        return []
    arrived = runs[0]["arrived_unix_ns"]
    between = [(left[1], right[0]) for left, right in pairwise(known)]
    waits = [(arrived, known[0][0]), *between] if arrived is not None else between
    return [(a, b) for a, b in waits if b > a]


def _edge(
    run: Row, step: int, spans: dict[tuple[int, int], tuple[int, int]]
) -> tuple[int, int] | None:
    return spans.get((run["ring_id"], run["first_iteration"] + step * run["stride"]))


def _run(run: Row) -> Figure:
    return {
        "phase": run["phase"],
        "recompute": run["recompute"],
        "first": run["first_iteration"],
        "count": run["n_iterations"],
        "stride": run["stride"],
        "tokens": run["tokens_each"],
        "emitted": run["emitted_each"],
        "context": run["context_first"],
    }


def _about(row: Row) -> str:
    key = f" ({row['request_key']})" if row["request_key"] else ""
    prompt, output = words.count(row["prompt_tokens"]), words.count(row["output_tokens"])
    end = f", {row['finish_reason']}" if row["finish_reason"] else ""
    return f"request #{row['serial']}{key}: {prompt} prompt, {output} output tokens{end}"
