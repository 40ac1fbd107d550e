"""Presets against the published figures, and against the traces where they are at hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchscope.workload.arrivals import QuantileGaps
from batchscope.workload.describe import describe
from batchscope.workload.presets import PRESETS, preset
from batchscope.workload.read import read_trace
from batchscope.workload.trace import Trace, TraceError

PUBLISHED: dict[str, dict[str, Any]] = {
    "code": {"cv": 13, "prompt": (1469, 5187, 7436), "output": (13, 55, 251)},
    "chat": {"cv": 1.1, "prompt": (1020, 2734, 4142), "output": (129, 424, 601)},
}


def quantiles(lengths: dict[str, float]) -> tuple[float, ...]:
    return tuple(lengths[name] for name in ("p50", "p90", "p99"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_statistics(name: str) -> None:
    figures = describe(preset(name, rate_per_s=4, requests=200_000, seed=11))
    published = PUBLISHED[name]
    assert figures["rate_per_s"] == pytest.approx(4, rel=1e-6)
    assert figures["gap_cv"] == pytest.approx(published["cv"], rel=0.06)
    assert quantiles(figures["prompt_tokens"]) == pytest.approx(published["prompt"], rel=0.03)
    assert quantiles(figures["output_tokens"]) == pytest.approx(published["output"], rel=0.03)


def test_the_code_law_itself_has_cv_13() -> None:
    law = PRESETS["code"].arrivals(1.0)
    assert isinstance(law, QuantileGaps)
    assert law.cv == pytest.approx(13, abs=0.01)


@pytest.mark.parametrize(("name", "file"), [("code", "azure2023_code"), ("chat", "azure2023_conv")])
def test_a_preset_is_close_to_the_trace_it_stands_for(traces: Path, name: str, file: str) -> None:
    real = describe(read_trace(traces / f"{file}.csv.gz"))
    drawn = describe(
        preset(name, rate_per_s=real["rate_per_s"], requests=200_000, seed=2, shared_ratio=0)
    )
    assert drawn["gap_cv"] == pytest.approx(real["gap_cv"], rel=0.06)
    for lengths in ("prompt_tokens", "output_tokens"):
        assert quantiles(drawn[lengths]) == pytest.approx(quantiles(real[lengths]), rel=0.03)
        assert drawn[lengths]["mean"] == pytest.approx(real[lengths]["mean"], rel=0.06)


def test_short_windows_of_the_code_preset_are_as_bursty_as_the_trace(traces: Path) -> None:
    def window_cv(trace: Trace) -> float:
        gaps = np.diff(trace.at_ns)
        windows = gaps[: len(gaps) // 120 * 120].reshape(-1, 120)
        return float(np.median(windows.std(axis=1) / windows.mean(axis=1)))

    real = window_cv(read_trace(traces / "azure2023_code.csv.gz"))
    drawn = window_cv(preset("code", rate_per_s=1, requests=100_000, seed=4))
    assert drawn == pytest.approx(real, rel=0.25)


def test_a_short_run_gets_exactly_the_load_that_was_asked_for() -> None:
    trace = preset("code", rate_per_s=4, requests=121, seed=9)
    assert trace.duration_ns == 30 * 10**9


def test_the_same_seed_is_the_same_traffic_and_another_is_not() -> None:
    one, same, other = (preset("chat", rate_per_s=2, requests=99, seed=s) for s in (1, 1, 2))
    assert list(one) == list(same)
    assert list(one) != list(other)


def test_lengths_scale_down_with_their_system_prompts() -> None:
    whole = preset("chat", rate_per_s=2, requests=4000, seed=1)
    small = preset("chat", rate_per_s=2, requests=4000, seed=1, length_scale=1 / 16)
    assert (small.prompt_tokens == -(-whole.prompt_tokens // 16)).all()
    assert (small.output_tokens == -(-whole.output_tokens // 16)).all()
    assert small.facts["system_prompts_tokens"] == [16, 32, 32, 64]
    assert small.facts["shaping"] == [{"length_scale": 1 / 16, "output_scale": 1 / 16}]


def test_outputs_can_keep_their_length() -> None:
    trace = preset(
        "code", rate_per_s=2, requests=500, seed=1, length_scale=1 / 16, output_scale=1.0
    )
    whole = preset("code", rate_per_s=2, requests=500, seed=1)
    assert (trace.output_tokens == whole.output_tokens).all()


def test_the_asked_share_begins_with_one_of_the_system_prompts() -> None:
    trace = preset("chat", rate_per_s=2, requests=20_000, seed=1, shared_ratio=0.5)
    sharing = [prefix for prefix in trace.prefix or () if prefix]
    assert len(sharing) / len(trace) == pytest.approx(0.5, abs=0.03)
    assert len({prefix[0] for prefix in sharing}) == 4
    for arrival in trace:
        assert len(arrival.prefix or ()) * 16 < arrival.prompt_tokens


def test_what_makes_no_sense_is_refused() -> None:
    for odd in (
        {"name": "haiku"},
        {"rate_per_s": 0},
        {"rate_per_s": float("nan")},
        {"length_scale": 0},
        {"length_scale": float("inf")},
        {"shared_ratio": 1.5},
    ):
        asked: dict[str, Any] = {"name": "chat", "rate_per_s": 1, "requests": 3, "seed": 1, **odd}
        with pytest.raises(TraceError):
            preset(asked.pop("name"), **asked)


def test_the_record_of_a_run_can_be_written_as_json() -> None:
    facts = json.loads(json.dumps(preset("code", rate_per_s=1, requests=5, seed=3).metadata()))
    assert facts["preset"] == "code"
    assert facts["arrivals"]["law"] == "quantile_gaps"
    assert (facts["seed"], facts["rate_per_s"], facts["requests"]) == (3, 1, 5)
