"""Pace, lengths, extent and impatience: what each does, and that the facts say it."""

from typing import Any

import numpy as np
import pytest

from batchscope.workload.shape import clipped, impatient, limited, paced, shortened
from batchscope.workload.trace import Trace, TraceError

S = 10**9


def trace(**columns: Any) -> Trace:
    return Trace(
        at_ns=np.array([0, S, S, 4 * S]),
        prompt_tokens=np.array([1, 600, 1024, 5000]),
        output_tokens=np.array([9, 1, 300, 40]),
        **columns,
    )


def blocks() -> Trace:
    return trace(prefix=((1,), (2, 3), (2, 4), tuple(range(10, 20))), block_tokens=512)


def test_half_the_scale_is_twice_the_rate_and_simultaneous_stays_simultaneous() -> None:
    faster = paced(trace(), 0.5)
    assert faster.at_ns.tolist() == [0, S // 2, S // 2, 2 * S]
    assert faster.facts["shaping"] == [{"time_scale": 0.5}]


def test_clipping_cuts_and_counts_and_drops_nobody() -> None:
    short = clipped(trace(), max_prompt_tokens=1000, max_output_tokens=50)
    assert short.prompt_tokens.tolist() == [1, 600, 1000, 1000]
    assert short.output_tokens.tolist() == [9, 1, 50, 40]
    assert short.facts["shaping"] == [
        {
            "max_prompt_tokens": 1000,
            "max_output_tokens": 50,
            "clipped_prompts": 2,
            "clipped_outputs": 1,
        }
    ]


def test_limits_take_the_beginning_of_every_column() -> None:
    two = limited(blocks(), limit=2)
    assert (len(two), two.prefix) == (2, ((1,), (2, 3)))
    assert len(limited(trace(), duration_ns=S)) == 1
    assert len(limited(trace(), duration_ns=S + 1)) == 3
    assert len(limited(trace(), limit=9, duration_ns=9 * S)) == 4


def test_shortened_blocks_stay_in_step_with_their_prompts() -> None:
    small = shortened(blocks(), 1 / 16)
    assert small.block_tokens == 32
    assert small.prompt_tokens.tolist() == [1, 38, 64, 313]
    for arrival, whole in zip(small, blocks(), strict=True):
        assert -(-arrival.prompt_tokens // 32) == -(-whole.prompt_tokens // 512)


def test_a_scale_that_would_split_a_token_is_refused() -> None:
    with pytest.raises(TraceError, match="parts of a token"):
        shortened(blocks(), 1 / 1000)


@pytest.mark.parametrize("scale", [0, -1, float("nan")])
def test_scales_are_above_zero(scale: float) -> None:
    with pytest.raises(TraceError):
        paced(trace(), scale)
    with pytest.raises(TraceError):
        shortened(trace(), scale)


def test_the_asked_share_of_clients_loses_patience() -> None:
    ones = np.ones(20_000, dtype=np.int64)
    many = Trace(ones, ones, ones)
    leaving = impatient(many, abort_ratio=0.2, mean_patience_ns=3 * S, seed=1)
    delays = [a.abort_after_ns for a in leaving if a.abort_after_ns is not None]
    assert len(delays) / len(many) == pytest.approx(0.2, abs=0.01)
    assert np.mean(delays) == pytest.approx(3 * S, rel=0.05)
    again = impatient(many, abort_ratio=0.2, mean_patience_ns=3 * S, seed=1)
    assert list(leaving) == list(again)
    assert leaving.facts["shaping"][0]["abort_ratio"] == 0.2
    with pytest.raises(TraceError):
        impatient(many, abort_ratio=1.1, mean_patience_ns=S, seed=1)


def test_the_facts_keep_every_step_in_order() -> None:
    done = limited(paced(shortened(trace(), 0.5), 2.0), limit=3)
    assert [next(iter(step)) for step in done.metadata()["shaping"]] == [
        "length_scale",
        "time_scale",
        "limit",
    ]
