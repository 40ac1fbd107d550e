"""Sessions whose input comes in pieces: each piece and its answer are a request with one end."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.adapters.ring_records import Seen
from tests.engines.versions import Run, Scenarios, run_of

from batchscope.schemas.reasons import FinishReason, words

pytestmark = pytest.mark.engines

BOTH = ("session", "session_async")
END = words(FinishReason)


def turns(run: Run, name: str) -> list[tuple[Seen, Seen]]:
    """(ARRIVED, FINISHED) of every request of that name, in the order of their coming."""
    seen = run.records()
    ends = {r["serial"]: r for r in seen if r.name == "finished"}
    came = [r for r in seen if r.name == "arrived" and r["key_text"] == name]
    return [(arrived, ends[arrived["serial"]]) for arrived in came]


@pytest.mark.parametrize("name", BOTH)
def test_each_piece_arrives_once_and_its_answer_has_one_end(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    found = turns(run, "talk")
    assert [end["output_tokens"] for _, end in found] == run.more["answers"]["talk"]
    assert str(END[found[0][1]["reason"]]) == "length"
    assert {str(END[end["reason"]]) for _, end in found} <= {"length", "stop"}
    prompts = [arrived["prompt_tokens"] for arrived, _ in found]
    kept = [end["output_tokens"] - 1 for _, end in found]
    assert prompts == [40, 80 + kept[0], 120 + kept[0] + kept[1]]
    ((_, cut),) = turns(run, "cut")
    assert str(END[cut["reason"]]) == "abort"
    assert run.more["faults"] == 0


@pytest.mark.parametrize("name", BOTH)
def test_the_clients_pauses_are_in_no_latency(scenarios: Scenarios, name: str) -> None:
    run = run_of(scenarios, name)
    (_, first_end), (second, _), _ = turns(run, "talk")
    assert first_end["at_ns"] < second["at_ns"], "the pause lies between two requests"
    assert not [r for r in run.records() if r.name == "blocked" and r["at_ns"] < second["at_ns"]]
    resting = [
        r
        for r in run.records()
        if r.name == "scheduled" and first_end["at_ns"] < r["at_ns"] < second["at_ns"]
    ]
    assert resting
    assert {r["waiting"] for r in resting} == {0}, "nobody waits for the engine"


@pytest.mark.parametrize("name", BOTH)
def test_sums_over_pieces_equal_a_recount(scenarios: Scenarios, name: str) -> None:
    run = run_of(scenarios, name)
    total = Counter[str]()
    for (metric, label), value in run.fold().totals.counters.items():
        total[metric] += value
        total[f"{metric} {'/'.join(label)}"] = value
    counted = run.counted
    assert total["scheduled_tokens prefill"] == counted["prefill"]
    assert total["scheduled_tokens decode"] == counted["decode"]
    assert total["output_tokens"] == counted["output"]
    assert total["cached_tokens"] == counted["cached"] > 0
    assert total["member_steps"] == counted["members"]
    assert total["requests_arrived"] == total["requests_finished"] == counted["arrived"] == 5
    assert total["audit_violations"] == 0 < total["audit_checks"]
