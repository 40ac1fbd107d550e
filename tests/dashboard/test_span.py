"""Presets, zooms, the way back: arithmetic on what Streamlit remembers."""

from __future__ import annotations

from typing import Any

import pytest
import streamlit as st

from batchscope.dashboard.views import span

NOW = 1_700_000_000_000_000_000
MINUTE = 60_000_000_000
ENGINE: dict[str, Any] = {
    "state": "live", "server_unix_ns": NOW, "ended_unix_ns": None,
    "first_iteration_unix_ns": NOW - 7 * MINUTE, "last_iteration_unix_ns": NOW - MINUTE,
    "first_attached_unix_ns": NOW - 8 * MINUTE,
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
