"""The swimlane made from real answers about the small world of the golden queries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.schemas.sql.world import BIG_RING, ask, at, database

from batchscope.dashboard.figures import swimlane as lanes

SCOPE = {"engine": "a", "from_ns": at(50), "to_ns": at(350)}


@pytest.fixture(scope="module")
def answers() -> tuple[pa.Table, pa.Table, pa.Table]:
    with database() as db:
        return (
            ask(db, "iteration_rows", **SCOPE, at_ns=at(350)),
            ask(db, "membership", **SCOPE),
            ask(db, "preemption_marks", **SCOPE),
        )


@pytest.fixture(scope="module")
def figure(answers: tuple[pa.Table, pa.Table, pa.Table]) -> dict[str, Any]:
    return lanes.swimlane(*answers, shown=(at(50), at(350)), selected=(BIG_RING, 5))


def test_there_is_one_lane_per_request_in_order(figure: dict[str, Any]) -> None:
    assert [lane["label"] for lane in figure["rows"]] == ["#1", "#2", "#4"]


def test_ring_ids_cross_to_javascript_as_text(figure: dict[str, Any]) -> None:
    assert figure["rings"] == [str(BIG_RING)]
    assert figure["selected"] == [0, 5]


def test_a_cell_covers_the_interval_of_its_iteration(figure: dict[str, Any]) -> None:
    spans = {number: (start, end) for number, start, end in figure["iterations"][0]}
    assert spans[2] == (at(100) / 1e6, at(140) / 1e6)
    assert spans[6][1] == at(340) / 1e6


def test_every_member_step_of_the_range_is_in_exactly_one_run(figure: dict[str, Any]) -> None:
    steps = {
        lane["label"]: [run["first"] + i for run in lane["runs"] for i in range(run["count"])]
        for lane in figure["rows"]
    }
    assert steps == {"#1": [1, 2, 3], "#2": [2, 3, 4, 5], "#4": [4, 5, 6]}


def test_phases_joins_leaves_and_preemptions_are_told(figure: dict[str, Any]) -> None:
    first, second, live = figure["rows"]
    assert [run["phase"] for run in second["runs"]] == ["prefill", "decode"]
    assert second["preemptions"] == [at(290) / 1e6]
    assert (first["served"], second["served"]) == (True, False)
    assert first["finished"] == at(160) / 1e6
    assert live["finished"] is None


def test_waiting_is_the_stretch_from_arrival_to_the_first_step(figure: dict[str, Any]) -> None:
    assert figure["rows"][1]["absent"][0] == [at(95) / 1e6, at(100) / 1e6]


def test_what_is_not_shown_is_said(answers: tuple[pa.Table, pa.Table, pa.Table]) -> None:
    rows, members, _ = answers
    assert lanes.left_out(rows, members) == ""
    with database() as db:
        fewer = ask(db, "membership", **SCOPE, rows=2)
        near = ask(db, "iteration_rows", **SCOPE, at_ns=at(350), rows=2)
    assert "2 of 3 requests" in lanes.left_out(rows, fewer)
    assert "2 of 6 iterations" in lanes.left_out(near, members)


def test_an_empty_range_has_no_lanes() -> None:
    with database() as db:
        empty = {**SCOPE, "from_ns": at(1000), "to_ns": at(2000)}
        nothing = (
            ask(db, "iteration_rows", **empty, at_ns=at(1000)),
            ask(db, "membership", **empty),
            ask(db, "preemption_marks", **empty),
        )
    assert lanes.swimlane(*nothing, shown=(at(1000), at(2000)))["rows"] == []
