"""S1-S4 and S14: what each step from request-level batching to paging bought, at saturation."""

from __future__ import annotations

import pytest
from tests.shapes.runs import saturated


def test_shape_s01_iteration_level_scheduling_beats_request_level_batching() -> None:
    """Like for like: both reserve the longest request, so both run 12."""
    assert saturated("conv", "orca").tokens_per_s > 1.8 * saturated("conv", "static").tokens_per_s


@pytest.mark.parametrize("name", ["conv", "sharegpt"])
def test_shape_s01_with_reservations_of_each_requests_own_limit(name: str) -> None:
    orca = saturated(name, "orca", "max_tokens")
    assert orca.tokens_per_s > 1.8 * saturated(name, "static").tokens_per_s


@pytest.mark.parametrize("name", ["conv", "sharegpt"])
def test_shape_s02_paging_beats_reserving_the_longest(name: str) -> None:
    assert saturated(name, "paged").tokens_per_s >= 1.3 * saturated(name, "orca").tokens_per_s


@pytest.mark.parametrize("name", ["conv", "sharegpt"])
def test_shape_s03_paging_runs_more_requests_at_once(name: str) -> None:
    assert saturated(name, "paged").mean_running > 2.5 * saturated(name, "orca").mean_running


@pytest.mark.parametrize("name", ["conv", "sharegpt", "code"])
def test_shape_s04_most_of_a_reservation_holds_no_token(name: str) -> None:
    assert saturated(name, "orca").kv_useful_ratio < 0.40
    assert saturated(name, "paged").kv_useful_ratio > 0.96


@pytest.mark.parametrize("name", ["conv", "sharegpt"])
@pytest.mark.parametrize("policy", ["orca", "paged"])
def test_shape_s14_what_raises_throughput_makes_tokens_jitter(name: str, policy: str) -> None:
    static, continuous = saturated(name, "static"), saturated(name, policy)
    assert static.jitter < 1.2 < 3 < continuous.jitter
    assert static.tokens_per_s < continuous.tokens_per_s
