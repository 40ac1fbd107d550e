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
GOODBYE_NS = 500_000_000
"""So much of what follows a gone engine's last iteration is shown: its goodbye, not the idle."""


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
    right.caption(spoken(engine))
    try:
        timeline.board(board(ask(engine)), key="board")
    except ClientError as error:
        st.error(str(error))


def spoken(engine: selection.Engine) -> str:
    """What stretch of time the board is about."""
    if engine["state"] == "live":
        return (
            f"last minute · sparklines: last {SPARK_MINUTES} minutes"
            f" · refreshes every {REFRESH_S:g} s"
        )
    return f"its last minute · sparklines: its last {SPARK_MINUTES} minutes · it has ended"


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
    answers["slo_in_force"] = query("slo_in_force")
    for name in ("timeline", "latency", "goodput"):
        answers[f"{name}_sparks"] = query(name, **sparks, points=SPARK_POINTS)
    losses = query("marks_and_losses", **sparks).to_pylist()
    hidden = unseen(losses, attached_ns=engine["first_attached_unix_ns"], to_ns=to_ns)
    grid = Grid(sparks["from_ns"], to_ns, SPARK_POINTS, hidden)
    now = first(query("now", **minute))
    return Glance(engine, now, answers, grid, slots_of(selection.config_of(engine)))


def end_of(engine: selection.Engine) -> int:
    """The exporter's clock while the engine lives; afterwards its end, or soon after its work's."""
    if engine["state"] == "live":
        return int(engine["server_unix_ns"])
    last, ended = engine["last_iteration_unix_ns"], engine["ended_unix_ns"]
    known = [at for at in (last and last + GOODBYE_NS, ended) if at is not None]
    return int(min(known, default=engine["server_unix_ns"])) + 1
