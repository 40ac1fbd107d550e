"""A rank of several engines: the steps that it runs for the others are iterations of nobody."""

from __future__ import annotations

import pytest
from tests.engines.versions import Scenarios, run_of

from batchscope.schemas.reasons import DeferralReason, Position, codes
from batchscope.schemas.records import DUMMY

pytestmark = pytest.mark.engines

GRAMMAR, SKIPPED = codes(DeferralReason)[DeferralReason.GRAMMAR], codes(Position)[Position.SKIPPED]


def test_each_dummy_batch_is_an_iteration_without_members_and_with_its_time(
    scenarios: Scenarios,
) -> None:
    run = run_of(scenarios, "dummies")
    seen = run.records()
    ends = {r["iteration_id"]: r["at_ns"] for r in seen if r.name == "completed"}
    told = [r for r in seen if r.name == "scheduled" and r.flags & DUMMY]
    *ran, after_we_left = run.more["ran"]
    assert after_we_left
    assert len(told) == len(ran) > 10
    for record, (began, ended) in zip(told, ran, strict=True):
        assert record["at_ns"] <= began < ended <= ends[record["iteration_id"]]
        assert record["n_decode"] == record["n_prefill"] == record["decode_tokens"] == 0
    assert run.more["faults"] == 0


def test_who_waits_beside_a_dummy_batch_keeps_the_reason(scenarios: Scenarios) -> None:
    seen = run_of(scenarios, "dummies").records()
    told = [r for r in seen if r.name == "scheduled" and r.flags & DUMMY]
    waited = [r["deferred"] for r in told if r["waiting"]]
    assert waited
    assert set(map(tuple, waited)) == {((1, GRAMMAR, SKIPPED),)}


def test_dummy_batches_count_as_no_work(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "dummies")
    fold = run.fold()
    counters = fold.totals.counters
    assert fold.hello["dp_rank"] == 1
    assert counters["scheduled_tokens", ("prefill",)] == run.counted["prefill"] == 20
    assert counters["output_tokens", ()] == run.counted["output"] == 8
    violated = {law: n for (metric, law), n in counters.items() if metric == "audit_violations"}
    assert not sum(violated.values()), violated
