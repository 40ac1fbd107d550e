"""Iterations: what each batch held, how long it took, who was left out, where the pages were."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow as pa
import streamlit as st

from batchscope.dashboard import timeline, words
from batchscope.dashboard.client import ClientError
from batchscope.dashboard.figures import column, histogram
from batchscope.dashboard.figures import swimlane as lanes
from batchscope.dashboard.figures import timeline as panes
from batchscope.dashboard.figures.tables import iteration_table, member_table
from batchscope.dashboard.views import selection, span

POINTS = 900
"""About one bucket per pixel of a 1280 px page: finer can't be drawn."""
STRIP_POINTS = 300
REFRESH_S = 3.0
PANES, LANES, TABLE, PICKED = "panes", "lanes", "table", "picked"


def page() -> None:
    """The page; follows the engine until someone zooms."""
    span.restore()
    every = _pace()
    st.fragment(run_every=every)(_body)(every)


def _pace() -> float | None:
    """Seconds between refreshes; None while a zoom or the toggle holds the range still."""
    return REFRESH_S if st.session_state.get("follow", True) and not span.zoomed() else None


def _body(every: float | None) -> None:
    if _pace() != every:
        st.rerun()  # a fragment keeps the pace it was made with: only a whole run changes it
    choices = selection.engines()
    if not choices:
        return
    left, middle, right = st.columns([3, 4, 4], vertical_alignment="center")
    with left:
        engine = selection.pick(choices)
    with middle:
        _presets(engine)
    with right:
        _moves(engine)
    span.keep()
    try:
        _draw(engine)
    except ClientError as error:
        st.error(str(error))


def _presets(engine: selection.Engine) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.segmented_control(
            "Range",
            list(span.PRESETS),
            key="preset",
            required=True,
            on_change=span.clear,
            label_visibility="collapsed",
        )
        if span.zoomed():
            from_ns, to_ns = span.current(engine)
            st.caption(f"zoomed to {words.duration_text(to_ns - from_ns)}")


def _moves(engine: selection.Engine) -> None:
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        gone = engine["state"] != "live"
        st.toggle(
            "Follow",
            value=True,
            key="follow",
            disabled=gone or span.zoomed(),
            help="The engine is gone: nothing changes any more." if gone else None,
        )
        st.button(
            "",
            icon=":material/chevron_left:",
            help="Earlier",
            on_click=span.pan,
            args=(engine, -0.5),
        )
        st.button(
            "", icon=":material/chevron_right:", help="Later", on_click=span.pan, args=(engine, 0.5)
        )
        st.button(
            "",
            icon=":material/zoom_out:",
            help="Back out (double click in a pane)",
            on_click=span.back,
            disabled=not span.zoomed(),
        )


def _draw(engine: selection.Engine) -> None:
    from_ns, to_ns = span.current(engine)
    scope = {**selection.scope(engine), "from_ns": from_ns, "to_ns": to_ns}
    answers = _answers(scope)
    picked = st.session_state.get(PICKED)
    around = _around(picked, from_ns=from_ns, to_ns=to_ns)
    rows = selection.client().query(
        "iteration_rows", **scope, at_ns=around, rows=lanes.MOST_ITERATIONS
    )
    _settle(rows)
    shown = lanes.extent(rows)
    clipped = bool(rows.num_rows) and column(rows, "in_range")[0] > rows.num_rows
    figure = panes.timeline(
        answers,
        from_ns=from_ns,
        to_ns=to_ns,
        slots=panes.slots_of(selection.config_of(engine)),
        window=shown if clipped else None,
    )
    timeline.panes(figure, key=PANES, on_zoom=_zoomed, on_back=span.back, on_pick=_pane_picked)
    if not rows.num_rows:
        st.info("No iteration completed in this range. Choose a longer one, or go back out.")
        return
    _membership(scope, rows, shown=shown if clipped else (from_ns, to_ns))
    _distribution(scope)
    _tables(scope, rows, clipped=clipped)


def _answers(scope: dict[str, Any]) -> dict[str, pa.Table]:
    query = selection.client().query
    points = {"timeline": POINTS, "deferrals_by_reason": POINTS, "admission_stops": STRIP_POINTS}
    answers = {name: query(name, **scope, points=n) for name, n in points.items()}
    return {**answers, "marks_and_losses": query("marks_and_losses", **scope)}


def _around(picked: dict[str, Any] | None, *, from_ns: int, to_ns: int) -> int:
    """The instant the swimlane is centred on: what was clicked, else the end of the range."""
    at = picked["at_ns"] if picked else to_ns
    return int(at) if from_ns <= at < to_ns else to_ns


def _membership(scope: dict[str, Any], rows: pa.Table, *, shown: tuple[int, int]) -> None:
    query = selection.client().query
    completions = column(rows, "unix_ns")
    window = {**scope, "from_ns": min(completions), "to_ns": max(completions) + 1}
    members = query("membership", **window, rows=lanes.MOST_ROWS)
    lost = query("preemption_marks", **window)
    st.markdown("**Who was in which iteration**")
    if hidden := lanes.left_out(rows, members):
        st.caption(hidden)
    figure = lanes.swimlane(rows, members, lost, shown=shown, selected=_selected())
    timeline.swimlane(figure, key=LANES, on_pick=_lane_picked)


def _distribution(scope: dict[str, Any]) -> None:
    query = selection.client().query
    buckets, latency = query("tbt_histogram", **scope), query("latency", **scope)
    st.markdown("**Time between tokens in this range**")
    st.caption(histogram.summary(buckets, latency))
    if figure := histogram.histogram(buckets, latency):
        timeline.histogram(figure, key="tbt")


def _tables(scope: dict[str, Any], rows: pa.Table, *, clipped: bool) -> None:
    listed = selection.client().query("slowest_iterations", **scope, rows=50) if clipped else rows
    _listed(listed, title="Slowest iterations" if clipped else "Iterations of the range")
    _members()


def _listed(listed: pa.Table, *, title: str) -> None:
    st.markdown(f"**{title}**")
    st.dataframe(
        iteration_table(listed),
        hide_index=True,
        height=280,
        key=TABLE,
        on_select=partial(_row_picked, listed),
        selection_mode="single-row",
    )


def _members() -> None:
    selected = _selected()
    if selected is None:
        st.markdown("**Members of an iteration**")
        st.caption("Click an iteration: in a pane, in the swimlane, or in the table.")
        return
    ring, iteration = selected
    members = selection.client().query("iteration_members", ring_id=ring, iteration_id=iteration)
    st.markdown(f"**Iteration {iteration}: {words.plural(members.num_rows, 'member')}**")
    st.dataframe(member_table(members), hide_index=True, height=280)


def _selected() -> tuple[int, int] | None:
    picked = st.session_state.get(PICKED)
    return (picked["ring_id"], picked["iteration_id"]) if picked and "ring_id" in picked else None


def _settle(rows: pa.Table) -> None:
    """A clicked instant becomes the iteration that was running then."""
    picked = st.session_state.get(PICKED)
    if picked and "ring_id" not in picked:
        later = [row for row in rows.to_pylist() if row["unix_ns"] >= picked["at_ns"]]
        if later:
            picked |= {"ring_id": later[0]["ring_id"], "iteration_id": later[0]["iteration_id"]}


def _zoomed() -> None:
    span.zoom_to(st.session_state[PANES]["zoom"])


def _pane_picked() -> None:
    st.session_state[PICKED] = {"at_ns": round(st.session_state[PANES]["pick"] * 1e6)}


def _lane_picked() -> None:
    ring, iteration = st.session_state[LANES]["pick"]
    earlier = st.session_state.get(PICKED) or {"at_ns": -1}
    st.session_state[PICKED] = {**earlier, "ring_id": int(ring), "iteration_id": int(iteration)}


def _row_picked(listed: pa.Table) -> None:
    chosen = st.session_state[TABLE]["selection"]["rows"]
    if chosen:
        row = listed.slice(chosen[0], 1).to_pylist()[0]
        st.session_state[PICKED] = {
            "at_ns": row["unix_ns"],
            "ring_id": row["ring_id"],
            "iteration_id": row["iteration_id"],
        }
