"""KV between engines: what the ring says of transfers against what vLLM's scheduler was told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.ring_records import Seen
from tests.engines.versions import Run, Scenarios, run_of

from batchscope.schemas import reasons
from batchscope.schemas.reasons import Direction
from batchscope.schemas.records import FAILED

pytestmark = pytest.mark.engines

DIRECTION = reasons.words(Direction)
SCENARIOS = ("fetch", "fetch_async", "keep", "transfer")


def hops(run: Run) -> dict[str, Seen]:
    """Request id -> its TRANSFER, which must be the only one of it."""
    seen = run.records()
    names = {r["serial"]: r["key_text"] for r in seen if r.name == "arrived"}
    told = [(names[record["serial"]], record) for record in seen if record.name == "transfer"]
    assert len(told) == len(dict(told))
    return dict(told)


def labels(run: Run) -> dict[int, str]:
    return {r["string"]: r["text"] for r in run.records() if r.name == "string"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_hop_is_told_once_and_with_the_instants_of_its_begin_and_end(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    expected: dict[str, Any] = run.more["hops"]
    found = hops(run)
    assert found.keys() == expected.keys()
    for request, hop in expected.items():
        record = found[request]
        assert hop["start"][0] <= record["start_ns"] <= hop["start"][1]
        assert hop["end"][0] <= record["at_ns"] <= hop["end"][1]
        assert str(DIRECTION[record["direction"]]) == hop["direction"]
        assert bool(record.flags & FAILED) == hop["failed"]
        assert record["blocks"] == hop.get("blocks")
    assert run.more["faults"] == 0


@pytest.mark.parametrize("name", ["fetch", "fetch_async"])
def test_bytes_are_told_where_they_can_be_of_one_load_alone(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    found = {request: record["bytes"] for request, record in hops(run).items()}
    assert found == {request: hop.get("bytes") for request, hop in run.more["hops"].items()}
    provided = run.fold().hello["provides"]
    assert provided["transfer.at_ns"] == "exact"
    assert provided["transfer.bytes"] == ("exact" if found["alone"] else "absent")


def test_what_the_scheduler_is_not_told_is_unknown(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "fetch")
    for record in hops(run).values():
        assert record["handshake_ns"] is None
        assert record["wait_ns"] is None
        assert labels(run)[record["peer"]] == "theirs"


@pytest.mark.parametrize("name", SCENARIOS)
def test_hops_do_not_disturb_the_sums(scenarios: Scenarios, name: str) -> None:
    run = run_of(scenarios, name)
    counters = run.fold().totals.counters
    assert counters["scheduled_tokens", ("prefill",)] == run.counted["prefill"]
    assert counters["scheduled_tokens", ("decode",)] == run.counted["decode"]
    ends = {word: counters["requests_finished", (word,)] for word in run.ends}
    assert ends == run.ends
    violated = {law: n for (metric, law), n in counters.items() if metric == "audit_violations"}
    assert not sum(violated.values()), violated


def test_a_hop_into_a_scheduler_without_a_connector_is_declared_absent(
    scenarios: Scenarios,
) -> None:
    provided = run_of(scenarios, "token_budget").fold().hello["provides"]
    assert provided["transfer.at_ns"] == provided["transfer.bytes"] == "absent"
