"""Presets, zooms, the way back: arithmetic on what Streamlit remembers."""

from __future__ import annotations

from typing import Any

import pytest
import streamlit as st

from batchscope.dashboard.views import span
from batchscope.dashboard.views.now import GOODBYE_NS

NOW = 1_700_000_000_000_000_000
MINUTE = 60_000_000_000
ENGINE: dict[str, Any] = {
    "state": "live", "server_unix_ns": NOW, "ended_unix_ns": None,
    "first_iteration_unix_ns": NOW - 7 * MINUTE, "last_iteration_unix_ns": NOW - MINUTE,
    "first_attached_unix_ns": NOW - 8 * MINUTE, "attached_unix_ns": NOW - 8 * MINUTE,
}  # fmt: skip


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    remembered: dict[str, Any] = {}
    monkeypatch.setattr(st, "session_state", remembered)
    return remembered


def test_a_preset_ends_now_and_all_begins_with_the_first_iteration() -> None:
    assert span.preset_span("5 min", ENGINE) == (NOW - 5 * MINUTE, NOW)
    assert span.preset_span("All", ENGINE) == (NOW - 7 * MINUTE, NOW)


def test_a_gone_engine_is_shown_as_it_was_when_it_ended() -> None:
    gone = {**ENGINE, "state": "dead", "ended_unix_ns": NOW - 2 * MINUTE}
    assert span.current(gone) == (NOW - 3 * MINUTE + 1, NOW - 2 * MINUTE + 1)


def test_no_range_is_longer_than_what_there_is_to_show() -> None:
    young = {**ENGINE, "first_iteration_unix_ns": NOW - MINUTE // 6}
    assert span.preset_span("15 min", young) == (NOW - MINUTE // 6, NOW)


def test_the_idle_hours_after_the_last_iteration_of_a_gone_engine_are_not_shown() -> None:
    last, second = NOW - 90 * MINUTE, 1_000_000_000
    gone = {
        **ENGINE, "state": "closed", "ended_unix_ns": NOW, "last_iteration_unix_ns": last,
        "first_iteration_unix_ns": last - 300 * MINUTE, "attached_unix_ns": last - 20 * second,
    }  # fmt: skip
    assert span.current(gone) == (last - 20 * second, last + GOODBYE_NS + 1)
    assert span.preset_span("5 min", gone)[0] < last - 4 * MINUTE


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    query: dict[str, str] = {}
    monkeypatch.setattr(st, "query_params", query)
    return query


def test_a_range_and_a_zoom_come_back_from_the_address(
    address: dict[str, str], memory: dict[str, Any]
) -> None:
    span.restore()
    memory["preset"] = "5 min"
    span.zoom_to([500.0, 1000.0])
    span.keep()
    assert address == {"range": "5 min", "zoom": "500000000-1000000000"}
    memory.clear()
    span.restore()
    assert memory["preset"] == "5 min"
    assert span.current(ENGINE) == (500_000_000, 1_000_000_000)
    span.back()
    span.keep()
    assert address == {"range": "5 min"}


@pytest.mark.parametrize("zoom", ["", "1", "1-", "a-b", "-5-7", "9" * 40 + "-1", "900-100"])
def test_an_address_that_makes_no_sense_is_the_default_range(
    address: dict[str, str], zoom: str
) -> None:
    address |= {"range": "a week", "zoom": zoom}
    span.restore()
    assert span.current(ENGINE) == (NOW - MINUTE, NOW)


def test_zooms_stack_and_go_back_one_by_one() -> None:
    span.zoom_to([1000.0, 500.0])
    span.zoom_to([600.0, 700.0])
    assert span.current(ENGINE) == (600_000_000, 700_000_000)
    span.back()
    assert span.current(ENGINE) == (500_000_000, 1_000_000_000)
    span.back()
    span.back()
    assert not span.zoomed()


def test_a_zoom_never_gets_shorter_than_an_iteration() -> None:
    span.zoom_to([500.0, 500.0])
    assert span.current(ENGINE) == (500_000_000, 500_000_000 + span.SHORTEST_NS)


def test_panning_moves_by_a_share_and_keeps_one_way_back() -> None:
    span.pan(ENGINE, -0.5)
    span.pan(ENGINE, -0.5)
    assert span.current(ENGINE) == (NOW - 2 * MINUTE, NOW - MINUTE)
    span.back()
    assert not span.zoomed()
