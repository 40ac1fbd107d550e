"""Figures of hand-made traces, exact."""

import json
from pathlib import Path

import numpy as np

from batchscope.workload.describe import describe
from batchscope.workload.read import read_trace
from batchscope.workload.trace import Trace

S = 10**9


def test_figures_of_a_trace_that_can_be_counted_by_hand() -> None:
    figures = describe(
        Trace(
            at_ns=np.array([0, S, S, 4 * S]),
            prompt_tokens=np.array([40, 40, 30, 10]),
            output_tokens=np.array([1, 2, 3, 4]),
            prefix=((1, 2, 3), (1, 2, 4), (9, 2), ()),
            block_tokens=16,
        )
    )
    assert figures["rate_per_s"] == 0.75
    assert round(figures["gap_cv"], 6) == round((14 / 9) ** 0.5 / (4 / 3), 6)
    assert figures["simultaneous_requests"] == 1
    assert figures["prompt_tokens"] == {"p50": 30, "p90": 40, "p99": 40, "mean": 30.0, "max": 40}
    assert figures["output_tokens"]["p50"] == 2
    # blocks 1 and 2 of the second prompt; the third names 2 behind a block nobody had
    assert figures["shared_ratio"] == 32 / 120
    json.dumps(figures)


def test_what_a_trace_can_not_say_is_none() -> None:
    one = np.array([5])
    figures = describe(Trace(np.array([0]), one, one))
    assert figures["rate_per_s"] is figures["gap_cv"] is figures["shared_ratio"] is None
    empty = np.array([], dtype=np.int64)
    assert describe(Trace(empty, empty, empty))["prompt_tokens"] is None
    two = np.array([5, 5])
    together = describe(Trace(two - 5, two, two))
    assert (together["rate_per_s"], together["simultaneous_requests"]) == (None, 1)


def test_mooncake_shares_all_but_the_first_sight_of_every_block(traces: Path) -> None:
    trace = read_trace(traces / "mooncake_conversation_trace.jsonl.gz")
    first_sights: dict[int, int] = {}
    for arrival in trace:
        for place, block in enumerate(arrival.prefix or ()):
            first_sights.setdefault(block, min(512, arrival.prompt_tokens - 512 * place))
    total = int(trace.prompt_tokens.sum())
    assert describe(trace)["shared_ratio"] == (total - sum(first_sights.values())) / total
    assert total - sum(first_sights.values()) > total / 3
