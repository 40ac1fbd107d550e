"""Paired differences of ABBA blocks: what they find, and what they cancel."""

from __future__ import annotations

import itertools
import random

import pytest
from bench.abba import compared, paired_interval

from batchscope.schemas.ring import LEVEL_MEMBERS


def test_a_cost_is_found_and_a_steady_drift_is_not_taken_for_one() -> None:
    drift = itertools.count(1_000_000, 1_000)

    def block(level: int) -> tuple[float, float]:
        base = float(next(drift))
        return base + 50_000 * (level == LEVEL_MEMBERS), base

    found = compared(block, quads=8)
    assert found["on_off"]["interval"]["difference"] == pytest.approx(0.05, rel=0.03)
    assert not found["on_off"]["interval"]["contains_0"]
    for name, what in (("on_off", "cpu"), ("a_a", "interval"), ("a_a", "cpu")):
        assert found[name][what]["difference"] == pytest.approx(0, abs=1e-12)


def test_noise_alone_has_0_inside_its_interval_about_nineteen_times_in_twenty() -> None:
    rng = random.Random(1)
    inside = [
        paired_interval([rng.gauss(0, 0.01) for _ in range(20)])["contains_0"] for _ in range(400)
    ]
    assert 0.92 < sum(inside) / len(inside) < 0.98
