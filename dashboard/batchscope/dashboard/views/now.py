"""Now: one glance at one engine, refreshed by itself."""

from __future__ import annotations

import streamlit as st

from batchscope.dashboard import timeline
from batchscope.dashboard.client import ClientError
from batchscope.dashboard.figures import first
from batchscope.dashboard.figures.board import board
from batchscope.dashboard.figures.sparks import Grid, unseen
from batchscope.dashboard.figures.tiles import Glance
from batchscope.dashboard.figures.timeline import slots_of
from batchscope.dashboard.views import selection

MINUTE_NS = 60_000_000_000
SPARK_MINUTES, SPARK_POINTS = 5, 60
REFRESH_S = 2.0


def page() -> None:
    """The page; only its fragment runs again."""
    _refreshed()


@st.fragment(run_every=REFRESH_S)
def _refreshed() -> None:
    choices = selection.engines()
    if not choices:
        return
    left, right = st.columns([2, 3], vertical_alignment="center")
    with left:
        engine = selection.pick(choices)
    right.caption(
        f"last minute · sparklines: last {SPARK_MINUTES} minutes · refreshes every {REFRESH_S:g} s"
    )
    try:
        timeline.board(board(ask(engine)), key="board")
    except ClientError as error:
        st.error(str(error))


def ask(engine: selection.Engine) -> Glance:
    """All answers the board needs. A gone engine is shown as it was in its last minute."""
    query, scope = selection.client().query, selection.scope(engine)
    to_ns = end_of(engine)
    minute = {**scope, "from_ns": to_ns - MINUTE_NS, "to_ns": to_ns}
    sparks = {**scope, "from_ns": to_ns - SPARK_MINUTES * MINUTE_NS, "to_ns": to_ns}
    answers = {
        name: query(name, **minute)
        for name in ("latency", "goodput", "deferrals_by_reason", "admission_stops", "trust")
    }
    for name in ("timeline", "latency", "goodput"):
        answers[f"{name}_sparks"] = query(name, **sparks, points=SPARK_POINTS)
    losses = query("marks_and_losses", **sparks).to_pylist()
    hidden = unseen(losses, attached_ns=engine["first_attached_unix_ns"], to_ns=to_ns)
    grid = Grid(sparks["from_ns"], to_ns, SPARK_POINTS, hidden)
    now = first(query("now", **minute))
    return Glance(engine, now, answers, grid, slots_of(selection.config_of(engine)))


def end_of(engine: selection.Engine) -> int:
    """The exporter's clock while the engine lives, its end (or last iteration) afterwards."""
    if engine["state"] == "live":
        return int(engine["server_unix_ns"])
    ends = (engine["ended_unix_ns"], engine["last_iteration_unix_ns"], engine["server_unix_ns"])
    return int(next(end for end in ends if end is not None)) + 1
