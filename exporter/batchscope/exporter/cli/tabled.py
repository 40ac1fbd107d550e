"""A replay's figures as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchscope.exporter.cli import spoken

MEASURES = ("ttft", "tbt", "tpot", "e2e", "lateness")
MARKS = ("p50", "p90", "p95", "p99", "max")
SIDES = tuple(
    (side, mark) for mark in ("p50", "p90", "p99", "max") for side in ("client", "engine")
)
LATE_NS = 10_000_000
"""A client that is later than this at p99 says so: its delay is in every figure."""
_VERDICTS = ("met", "missed", "undetermined", "failed", "shed", "aborted")


def lines(told: Mapping[str, Any]) -> list[str]:
    """The whole of it."""
    return [
        *_head(told),
        "",
        *_table(told),
        *_notes(told),
        *_goodput(told["goodput"]),
        *_beside(told.get("beside_engine"), told.get("recorded_by", ())),
    ]


def share(value: float | None) -> str:
    """0.9132."""
    return spoken.DASH if value is None else f"{value:.4f}"


def _head(told: Mapping[str, Any]) -> Iterator[str]:
    ends = ", ".join(f"{n:,} {status}" for status, n in sorted(told["statuses"].items()))
    early = told["came_due"] - told["requests"]
    warm_up = f" (and {early:,} of the warm-up)" if early else ""
    yield f"{told['requests']:,} requests to {told['target']}{warm_up}: {ends or 'none'}"
    offered, answered, tokens = (
        _number(told[f"{name}_per_s"]) for name in ("offered", "completed", "output_tokens")
    )
    yield f"offered {offered}/s, answered {answered}/s, {tokens} output tokens/s"


def _number(value: float | None) -> str:
    return spoken.DASH if value is None else f"{value:,.4g}"


def _table(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'':<9}" + "".join(f"{name:>11}" for name in ("n", *MARKS))
    for name in MEASURES:
        seen = told[f"{name}_ns"] or dict.fromkeys(("n", *MARKS))
        cells = [spoken.count(seen["n"]), *(spoken.duration(seen[mark]) for mark in MARKS)]
        yield f"{name:<9}" + "".join(f"{cell:>11}" for cell in cells)


def _notes(told: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{status}: {why}" for status, why in told["reasons"].items())
    if told["came_due"] and not told["requests"]:
        yield "all of them came within the warm-up: there is nothing to tell"
    if told["statuses"].get("ok") and told["ttft_ns"] is None:
        yield "the server told neither ids nor text: when its tokens came is unknown"
    late = told["lateness_ns"]
    if late and late["p99"] > LATE_NS:
        by = spoken.duration(late["p99"])
        yield f"the client itself sent late, by {by} at p99: that is part of all figures here"
    if unsent := told["statuses"].get("unsent"):
        yield f"{unsent:,} never sent: there were {told['under_way_cap']:,} under way, the cap"
    if told["interrupted"]:
        yield "interrupted: the rest of the trace was not offered"


def _goodput(good: Mapping[str, Any] | None) -> Iterator[str]:
    if good is None:
        return
    counts = ", ".join(f"{good[name]:,} {name}" for name in _VERDICTS if good[name])
    yield ""
    yield f"SLO {good['slo']}: attainment {share(good['attainment'])} ({counts})"
    of_all = share(good["met_of_arrived"])
    yield f"goodput {_number(good['met_per_s'])} requests/s; met, of all that arrived: {of_all}"


def _beside(rows: Sequence[Mapping[str, Any]] | None, engines: Sequence[str]) -> Iterator[str]:
    if rows is None:
        return
    yield ""
    if not rows:
        yield f"handed in; {_nothing_beside(engines)}"
        return
    yield f"{'':<9}{'n':>9}" + "".join(f"{f'{side} {mark}':>12}" for side, mark in SIDES)
    for row in rows:
        cells = [spoken.duration(row[f"{side}_{mark}_ns"]) for side, mark in SIDES]
        yield f"{row['measure']:<9}{row['requests']:>9,}" + "".join(f"{c:>12}" for c in cells)


def _nothing_beside(engines: Sequence[str]) -> str:
    """Why there is nothing to compare, of requests that these engines have recorded."""
    if not engines:
        return "the exporter has recorded none of these requests in an engine"
    whose = ", ".join(engines)
    return f"nothing to compare: {whose} recorded halves of them or the warm-up alone"
