"""Panes made from real answers about the small world of the golden queries."""

from __future__ import annotations

from typing import Any

import pytest
from tests.schemas.sql.world import ask, at, database

from batchscope.dashboard.figures import timeline as panes
from batchscope.dashboard.figures.strip import merged
from batchscope.dashboard.palette import REASONS

FROM, TO = at(50), at(350)
SCOPE = {"engine": "a", "from_ns": FROM, "to_ns": TO}


@pytest.fixture(scope="module")
def figure() -> dict[str, Any]:
    points = {"timeline": 300, "deferrals_by_reason": 300, "admission_stops": 300}
    with database() as db:
        answers = {name: ask(db, name, **SCOPE, points=n) for name, n in points.items()}
        answers["marks_and_losses"] = ask(db, "marks_and_losses", **SCOPE)
    return panes.timeline(answers, from_ns=FROM, to_ns=TO, slots=2)


def values(figure: dict[str, Any], pane: int, label: str) -> list[float | None]:
    series = figure["panes"][pane]["series"]
    return next(list(s["values"]) for s in series if s["label"] == label)


def known(figure: dict[str, Any], pane: int, label: str) -> list[float]:
    """One value an iteration: what follows a hole stands at its beginning, too."""
    x, found = figure["panes"][pane]["x"], values(figure, pane, label)
    beginnings = {i for i in range(len(x)) if i == 0 or x[i - 1] in hole_ends(figure)}
    return [v for i, v in enumerate(found) if v is not None and i not in beginnings]


def hole_ends(figure: dict[str, Any]) -> set[float]:
    running = values(figure, 2, "running")
    return {at for at, v in zip(figure["panes"][2]["x"], running, strict=True) if v is None}


def test_every_series_has_one_value_per_instant_and_instants_ascend(figure: dict[str, Any]) -> None:
    for pane in figure["panes"]:
        assert pane["x"] == sorted(pane["x"])
        assert {len(series["values"]) for series in pane["series"]} == {len(pane["x"])}


def test_tokens_are_those_of_each_iteration_under_the_budget(figure: dict[str, Any]) -> None:
    assert known(figure, 0, "prefill") == [512, 511, 0, 0, 0]
    assert known(figure, 0, "decode") == [0, 1, 2, 2, 2]
    assert set(known(figure, 0, "token budget")) == {512}


def test_an_unknown_interval_is_a_hole_not_a_zero(figure: dict[str, Any]) -> None:
    assert known(figure, 1, "mean") == [40, 20, 30]


def test_the_slot_limit_is_drawn_through_holes(figure: dict[str, Any]) -> None:
    assert set(values(figure, 2, "slots")) == {2}


def test_left_out_requests_stack_by_reason_and_are_zero_where_seen(figure: dict[str, Any]) -> None:
    assert known(figure, 3, "token budget") == [0, 3, 0, 0, 0]
    assert known(figure, 3, "request slots") == [0, 0, 2, 0, 0]
    assert known(figure, 3, "KV blocks") == [0, 0, 0, 2, 0]


def test_kv_states_sum_to_the_pool(figure: dict[str, Any]) -> None:
    states = [known(figure, 4, state) for state in ("used", "evictable", "free")]
    assert [sum(parts) for parts in zip(*states, strict=True)] == [100] * 5


def test_a_loss_is_shaded_and_a_mark_is_a_line(figure: dict[str, Any]) -> None:
    assert figure["shades"] == [[at(170) / 1e6, at(300) / 1e6, "5 iterations lost"]]
    assert figure["marks"] == [[at(200) / 1e6, "deploy"]]


def test_no_line_bridges_a_loss(figure: dict[str, Any]) -> None:
    x, running = figure["panes"][2]["x"], values(figure, 2, "running")
    before, after = at(160) / 1e6, at(299) / 1e6  # what follows is a bucket, 1 ms, wide
    between = [v for at_ms, v in zip(x, running, strict=True) if before < at_ms < after]
    assert between
    assert set(between) == {None}


def test_an_iteration_between_two_holes_is_as_wide_as_its_interval() -> None:
    def row(unix_ns: int) -> dict[str, Any]:
        return {"unix_ns": unix_ns, "bucket_ns": 2, "interval_max_ns": 30, "decode_tokens_mean": 7}

    rows = panes.with_breaks([row(100), row(500), row(530)])
    assert [r["unix_ns"] for r in rows] == [70, 100, 285, 470, 500, 530]
    drawn = panes.tokens_pane(rows)["series"][0]["values"]
    assert drawn == [7, 7, None, 7, 7, 7]


def test_the_strip_names_what_admission_stopped_at(figure: dict[str, Any]) -> None:
    labels = [segment[3] for segment in figure["strip"]["segments"]]
    assert labels[:3] == ["queue emptied", "token budget", "request slots"]
    assert ["KV blocks", REASONS["kv_blocks"]] in figure["strip"]["keys"]


def test_legends_keep_the_order_of_the_palette_whatever_is_frequent(figure: dict[str, Any]) -> None:
    order = ["token budget", "request slots", "KV blocks"]
    assert [label for label, _ in figure["strip"]["keys"]] == [*order, "queue emptied"]
    left_out = [series["label"] for series in figure["panes"][3]["series"]]
    assert left_out == [*order, "waiting"]


def test_a_stop_covers_its_iteration_up_to_its_completion(figure: dict[str, Any]) -> None:
    slots = next(s for s in figure["strip"]["segments"] if s[3] == "request slots")
    assert slots[:2] == pytest.approx([at(141) / 1e6, at(161) / 1e6], abs=0.01)


def test_neighbours_of_one_reason_become_one_segment() -> None:
    joined = merged([[0, 1, "red", "a"], [1, 2, "red", "a"], [2, 3, "blue", "b"]])
    assert joined == [[0, 2, "red", "a"], [2, 3, "blue", "b"]]


def test_kv_of_an_engine_that_does_not_tell_is_unknown() -> None:
    row = {"kv_total_blocks": None, "kv_used_blocks": None, "kv_evictable_blocks": None}
    assert set(panes.kv_percent(row).values()) == {None}


@pytest.mark.parametrize(
    ("config", "slots"),
    [({"max_num_seqs": 64}, 64), ({"max_running_requests": 8}, 8), ({"policy": "chunked"}, None)],
)
def test_the_slot_limit_is_found_under_the_engines_own_name(
    config: dict[str, Any], slots: int | None
) -> None:
    assert panes.slots_of(config) == slots
