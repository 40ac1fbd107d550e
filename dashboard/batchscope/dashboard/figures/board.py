"""The Now page as one figure: is it alive, how fast, how late, who waits for what, was it useful.

Input are answers of the queries now, latency, timeline, goodput, deferrals_by_reason,
admission_stops, marks_and_losses and trust; see views/now.py for their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, first
from batchscope.dashboard.figures.tiles import Glance, latency, pages, queue, throughput, trust

Row = dict[str, Any]
STALLED_NS = 5_000_000_000
"""Work is there and nothing completed for this long: the engine counts as stalled."""
GONE = {"closed": "Detached", "dead": "Gone without goodbye"}
HELD = 0.05
"""Admission counts as held back when more than this share of decisions stopped for a reason."""


def board(glance: Glance) -> Figure:
    """Component data for timeline.board."""
    return {
        "status": status(glance.engine, glance.now),
        "groups": [
            _group("What holds admission back, last minute", 7, [bound(glance)]),
            _group("Who is left out, last minute", 5, [left_out(glance)]),
            _group(usefulness(first(glance.answers["slo_in_force"])), 12, throughput(glance)),
            _group("Latency, last minute", 7, latency(glance)),
            _group("Queue", 5, queue(glance)),
            _group("KV pages", 5, pages(glance)),
            _group("Can these figures be trusted?", 7, trust(first(glance.answers["trust"]))),
        ],
    }


def usefulness(slo: Row) -> str:
    """Heading of throughput and goodput, with the terms that "met the SLO" stands for."""
    terms = words.slo(slo["targets"]) if slo else "none set"
    return f"Throughput, and how much of it was useful · SLO: {terms}"


def _group(title: str, width: int, tiles: list[Figure]) -> Figure:
    return {"title": title, "width": width, "tiles": tiles}


def status(engine: Row, now: Row) -> Figure:
    """Alive, idle, stalled, or gone; when the last iteration completed; which version."""
    tone, state = liveness(engine, now)
    last = engine["last_iteration_unix_ns"]
    age = None if last is None else max(0, engine["server_unix_ns"] - last)
    seen = "no iteration yet" if age is None else f"last iteration {words.age(age)} ago"
    version = " ".join(filter(None, (engine["kind"], engine["version"])))
    restarts = f" · {words.plural(engine['rings'] - 1, 'restart')}" if engine["rings"] > 1 else ""
    return {
        "tone": tone,
        "state": state,
        "detail": f"{seen} · {version}{restarts}",
    }


def liveness(engine: Row, now: Row) -> tuple[str, str]:
    """(tone, words) of the status line."""
    if engine["state"] != "live":
        return engine["state"], GONE.get(engine["state"], "Gone")
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
        {
            "label": words.reason(stop),
            "colour": palette.reason_colour(stop),
            "ratio": n / decisions,
            "text": words.percent(n / decisions),
        }
        for stop, n in sorted(stops.items(), key=lambda item: (item[0] is None, -item[1]))
    ]
    return {
        "kind": "bound",
        "headline": headline(stops),
        "evidence": evidence(glance),
        "parts": parts,
    }


def headline(stops: Mapping[str | None, int]) -> str:
    """The most frequent stop in one sentence."""
    decisions = sum(stops.values())
    if not decisions:
        return "No decision in the last minute"
    named = {stop: n for stop, n in stops.items() if stop is not None}
    leading = max(named, key=lambda stop: named[stop], default=None)
    if leading is None or named[leading] < HELD * decisions:
        return "Nothing holds admission back"
    share = words.percent(named[leading] / decisions)
    return f"Held by {words.reason(leading)} in {share} of decisions"


def evidence(glance: Glance) -> str:
    """The three limits side by side, so that a low KV figure can't hide a full set of slots."""
    now = glance.now
    slots = f" of {glance.slots} slots" if glance.slots else ""
    kv = words.share(now.get("kv_used_blocks"), now.get("kv_total_blocks"))
    parts = (
        f"running {words.count(now.get('running'))}{slots}",
        f"KV {words.percent(kv)} used",
        f"batches {words.percent(now.get('budget_used_ratio'))} of the token budget",
        f"{words.count(now.get('waiting'))} waiting",
    )
    return " · ".join(parts)


def left_out(glance: Glance) -> Figure:
    """Mean requests left out per decision, by reason."""
    rows = sorted(glance.rows("deferrals_by_reason"), key=lambda row: -row["left_out_mean"])
    top = max((row["left_out_mean"] for row in rows), default=1.0) or 1.0
    return {
        "kind": "reasons",
        "label": "Requests left out of a decision",
        "empty": "Nobody was left out.",
        "help": "Mean over all decisions; share of decisions that left anyone out for that reason",
        "rows": [_reason(row, top) for row in rows[:5]],
    }


def _reason(row: Row, top: float) -> Figure:
    share = words.percent(row["decisions_with"] / row["decisions"])
    return {
        "label": words.reason(row["reason"]),
        "colour": palette.reason_colour(row["reason"]),
        "ratio": row["left_out_mean"] / top,
        "text": f"{words.mean(row['left_out_mean'])} on average · {share} of decisions",
    }
