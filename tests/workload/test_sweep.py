"""The search for capacity, against servers whose capacity is known."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscope.workload.sweep import Point, Search, capacity


def server(limit_per_s: float) -> Callable[[float], Point]:
    """All is well up to a rate, and half of it above."""
    return lambda rate: Point(rate, 1.0 if rate <= limit_per_s else 0.5, {})


@given(
    st.floats(0.01, 1e4, allow_subnormal=False),
    st.floats(0.01, 1e4, allow_subnormal=False),
)
def test_the_bracket_holds_the_capacity_and_both_ends_were_measured(
    limit: float, first: float
) -> None:
    found = capacity(Search(0.9, first, precision=0.05, most_points=64), server(limit))
    assert found.whole
    assert found.low_per_s is not None
    assert found.high_per_s is not None
    assert found.low_per_s <= limit < found.high_per_s <= found.low_per_s * 1.05
    assert {found.low_per_s, found.high_per_s} <= {point.rate_per_s for point in found.points}


def test_points_are_doubled_then_bisected() -> None:
    found = capacity(Search(0.9, 1.0, precision=0.1), server(11.9))
    assert [point.rate_per_s for point in found.points] == [1, 2, 4, 8, 16, 12, 10, 11]
    assert (found.low_per_s, found.high_per_s, found.whole) == (11, 12, True)


def test_a_start_above_the_capacity_is_halved() -> None:
    found = capacity(Search(0.9, 8.0, precision=0.5), server(1.7))
    assert [point.rate_per_s for point in found.points] == [8, 4, 2, 1, 1.5]
    assert (found.low_per_s, found.high_per_s) == (1.5, 2)


@pytest.mark.parametrize(
    ("limit", "low", "high"), [(1e9, 16, None), (1e-9, None, 1 / 16), (6.5, 6, 8)]
)
def test_the_points_are_bounded_and_what_is_not_known_is_not_said(
    limit: float, low: float | None, high: float | None
) -> None:
    found = capacity(Search(0.9, 1.0, precision=0.01, most_points=5), server(limit))
    assert len(found.points) == 5
    assert (found.low_per_s, found.high_per_s, found.whole) == (low, high, False)


def test_the_way_down_ends_where_a_lower_rate_would_offer_the_same_requests() -> None:
    def hopeless(rate: float) -> Point:
        return Point(rate, 0.0, {}, fewest=rate <= 1)

    found = capacity(Search(0.9, 8.0, most_points=16), hopeless)
    assert [point.rate_per_s for point in found.points] == [8, 4, 2, 1]
    assert (found.low_per_s, found.high_per_s, found.bottomed) == (None, 1, True)


def test_the_way_up_begins_with_few_requests_all_the_same() -> None:
    def short(rate: float) -> Point:
        return Point(rate, 1.0 if rate <= 5 else 0.0, {}, fewest=rate <= 2)

    found = capacity(Search(0.9, 1.0, precision=0.25), short)
    assert [point.rate_per_s for point in found.points] == [1, 2, 4, 8, 6, 5]
    assert (found.whole, found.bottomed) == (True, False)


def test_a_point_that_cant_be_judged_reaches_nothing() -> None:
    search = Search(0.5, 1.0, most_points=3)
    assert capacity(search, lambda rate: Point(rate, None, {})).low_per_s is None
