"""The distribution of times between tokens, from real answers about the small world."""

from __future__ import annotations

import pytest
from tests.schemas.sql.world import ask, at, database

from batchscope.dashboard.figures.histogram import histogram, summary, ticks

SCOPE = {"engine": "a", "from_ns": at(50), "to_ns": at(350)}


def test_every_gap_is_in_a_bar_or_counted_as_zero() -> None:
    with database() as db:
        answers = ask(db, "tbt_histogram", **SCOPE), ask(db, "latency", **SCOPE)
    figure = histogram(*answers)
    assert figure is not None
    assert sum(gaps for _, _, gaps in figure["bars"]) + 2 == 6
    assert all(low < high for low, high, _ in figure["bars"])
    assert figure["lines"][1][:2] == [170.0, "p99"]
    assert summary(*answers).startswith("6 gaps · p50 20.0 ms · p99 170 ms · max 170 ms · 2 of 0")


def test_a_range_without_tokens_has_no_histogram_and_says_so() -> None:
    with database() as db:
        empty = {**SCOPE, "from_ns": at(1000), "to_ns": at(2000)}
        answers = ask(db, "tbt_histogram", **empty), ask(db, "latency", **empty)
    assert histogram(*answers) is None
    assert "No gap" in summary(*answers)


def test_ticks_are_the_round_numbers_of_the_range() -> None:
    assert ticks(8, 250) == pytest.approx([10, 20, 50, 100, 200])
