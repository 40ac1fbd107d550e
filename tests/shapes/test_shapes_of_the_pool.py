"""S5, S10 and S12: the KV pool in closed form, shrunk until it hurts, and counted twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.shapes.observed import Observed
from tests.shapes.runs import LONGEST, Ints, config, is_rising, lengths, offered, poisson

PUBLISHED = {
    "conv": {16: 99.4, 64: 97.6, 256: 90.9, LONGEST: 15.4},
    "code": {16: 99.6, 64: 98.5, 256: 94.1, LONGEST: 25.8},
    "sharegpt": {16: 99.7, 64: 98.9, 256: 95.5, LONGEST: 33.2},
}
"""Percent of allocated token slots that hold a token, by the unit of allocation."""


def useful_percent(prompt: Ints, output: Ints, unit: int) -> float:
    """From lengths alone: over all steps of all requests, context over the units that hold it."""
    first = prompt + output - np.cumsum(output)
    contexts = np.repeat(first, output) + np.arange(output.sum())
    return float(100 * contexts.sum() / (-(-contexts // unit) * unit).sum())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_shape_s05_closed_form_of_a_whole_trace(name: str) -> None:
    for unit, percent in PUBLISHED[name].items():
        assert useful_percent(*lengths(name), unit) == pytest.approx(percent, abs=0.5)


@pytest.mark.parametrize("block", [16, 64, 256])
def test_shape_s05_the_exporters_waste_of_pages_is_that_of_the_closed_form(
    tmp_path: Path, block: int
) -> None:
    trace = poisson("conv", 400, rate_per_s=4)
    paged = config("paged", block_size=block, num_blocks=100_000 // block, watermark_blocks=0)
    seen = Observed(paged, trace, tmp_path)
    held = seen.column("iterations", "kv_context_tokens").sum()
    waste = seen.column("iterations", "kv_waste_tokens").sum()
    expected = useful_percent(trace.prompt_tokens, trace.output_tokens, block)
    assert 100 * held / (held + waste) == pytest.approx(expected, abs=1)


def test_shape_s05_the_exporters_pool_shows_what_reservations_waste(tmp_path: Path) -> None:
    trace = poisson("conv", 400, rate_per_s=2)
    seen = Observed(config("orca"), trace, tmp_path)
    held = seen.column("iterations", "kv_context_tokens").sum()
    slots = seen.column("iterations", "kv_used_blocks").sum() * 16
    expected = useful_percent(trace.prompt_tokens, trace.output_tokens, LONGEST)
    assert 100 * held / slots == pytest.approx(expected, abs=1)


def test_shape_s10_a_smaller_pool_preempts_and_recomputes_more() -> None:
    """With the cache on, so that a resumed request finds what is left of its own blocks."""
    pools = (10_000, 6250, 5000, 4000)
    runs = [
        offered("chunked", 2.5, 400, num_blocks=blocks, enable_prefix_caching=True)
        for blocks in pools
    ]
    totals = [run.engine.totals for run in runs]
    assert max(step.kv_blocks for step in runs[0].steps) < pools[0]
    assert [totals[0].preemptions, totals[0].recomputed] == [0, 0]
    assert is_rising([each.preemptions for each in totals])
    assert is_rising([each.recomputed for each in totals])
    assert [each.cached for each in totals] == [0] * len(pools)
    resumed = [s.seq for s in runs[-1].served if s.seq.num_preemptions]
    assert any(seq.num_cached for seq in resumed), "what they found again is not a prefix hit"


@pytest.mark.parametrize("policy", ["static", "orca", "paged", "chunked"])
def test_shape_s12_sums_over_iterations_are_sums_over_requests(tmp_path: Path, policy: str) -> None:
    trace = poisson("sharegpt", 250, rate_per_s=3)
    seen = Observed(config(policy, num_blocks=2000), trace, tmp_path)
    totals = seen.run.engine.totals
    for name in ("prefill", "decode", "output", "recomputed"):
        by_iteration = seen.column("iterations", f"{name}_tokens").sum()
        by_request = seen.column("requests", f"{name}_tokens").sum()
        assert by_iteration == by_request == getattr(totals, name), name
    prefill, decode = (seen.column("iterations", f"{n}_members") for n in ("prefill", "decode"))
    steps = seen.column("requests", "steps").sum()
    assert prefill.sum() + decode.sum() == steps == totals.member_steps
    assert seen.column("requests", "preemptions").sum() == totals.preemptions
    assert (totals.preemptions > 0) == (policy in ("paged", "chunked"))
