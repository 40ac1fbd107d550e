"""The real Scheduler of each version: what the ring says against what its own outputs said."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.adapters.ring_records import Seen
from tests.engines.versions import Run, Scenarios, run_of

from batchscope.schemas.reasons import DeferralReason, FinishReason, Position, words

pytestmark = pytest.mark.engines

Row = tuple[int, str, str]

WORKLOADS = (
    "workload",
    "workload_async",
    "workload_pipeline",
    "workload_second_runner",
    "workload_drafts",
    "workload_pooling",
)
REASON, POSITION, END = words(DeferralReason), words(Position), words(FinishReason)
EXPECTED: dict[str, tuple[str | None, list[Row]]] = {
    "token_budget": ("token_budget", [(7, "token_budget", "global")]),
    "max_requests": ("max_requests", [(5, "max_requests", "global")]),
    "kv_blocks": ("kv_blocks", [(1, "kv_blocks", "head"), (5, "kv_blocks", "behind")]),
    "kv_watermark": ("kv_watermark", [(1, "kv_watermark", "head"), (1, "kv_watermark", "behind")]),
    "preemption": ("preemption", [(1, "preemption", "global")]),
    "priority": ("preemption", [(3, "preemption", "global")]),
    "paused": ("paused", [(1, "paused", "global")]),
    "prefill_throttle": ("prefill_throttle", [(1, "prefill_throttle", "head")]),
    "chunk_policy": ("chunk_policy", [(1, "chunk_policy", "head")]),
    "lora": (None, [(2, "lora", "skipped")]),
    "grammar": (None, [(1, "grammar", "skipped")]),
    "transfer": (None, [(1, "transfer", "skipped")]),
}
"""Scenario -> (admission stop, rows of deferrals) that one of its decisions must have."""
NOT_REACHED = {
    "input_budget": "needs a drafter with slots of its own",
    "spec_pad_budget": "needs a drafter",
    "mamba_alignment": "needs a hybrid model",
    "encoder_transfer": "needs an encoder connector",
    "stale_output_drain": "needs a preemption and a resume within two steps of the pipeline",
    "remote_match_pending": "needs a connector that can't tell yet",
    "full_sequence_gate": "is told as kv_blocks: the pool is short of the whole prompt",
}
"""Ways to be left out that the model-less scheduler was not brought into."""


def decisions(run: Run) -> list[Seen]:
    return [record for record in run.records() if record.name == "scheduled"]


def deferred(decision: Seen) -> list[Row]:
    return [(n, str(REASON[why]), str(POSITION[at])) for n, why, at in decision["deferred"]]


@pytest.mark.parametrize("name", WORKLOADS)
def test_sums_of_the_folded_ring_equal_a_recount_from_the_schedulers_outputs(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    counters = Counter(run.fold().totals.counters)
    total = Counter[str]()
    for (metric, _), value in counters.items():
        total[metric] += value
    counted = run.counted
    assert run.more["faults"] == 0
    assert counters["scheduled_tokens", ("prefill",)] == counted["prefill"]
    assert counters["scheduled_tokens", ("decode",)] == counted["decode"]
    assert total["draft_tokens"] == counted["draft"]
    assert total["output_tokens"] == counted["output"]
    assert total["cached_tokens"] == counted["cached"] > 0
    assert total["preemptions"] == counted["preempted"]
    assert total["iterations"] == counted["iterations"]
    assert total["member_steps"] == counted["members"]
    assert total["requests_arrived"] == counted["arrived"] >= 40
    ends = {word: counters["requests_finished", (word,)] for word in run.ends}
    assert ends == run.ends
    assert total["requests_finished"] == counted["arrived"]
    assert total["audit_violations"] == 0 < total["audit_checks"]


@pytest.mark.parametrize("name", WORKLOADS[:2])
def test_a_small_pool_preempts_and_its_blocks_add_up(scenarios: Scenarios, name: str) -> None:
    run = run_of(scenarios, name)
    seen = decisions(run)
    assert run.counted["preempted"] > 0
    assert {d["kv_total_blocks"] for d in seen} == {run.more["blocks"]}
    assert all(0 < d["kv_used_blocks"] <= d["kv_total_blocks"] for d in seen)
    free = [d["kv_total_blocks"] - d["kv_used_blocks"] for d in seen]
    assert all(d["kv_evictable_blocks"] <= f for d, f in zip(seen, free, strict=True))
    assert run.more["evictable_error"] <= 8, "an estimate, of a pool of 39"


def test_vllms_own_queue_times_agree_with_ours(scenarios: Scenarios) -> None:
    seen = run_of(scenarios, "workload").records()
    arrived = {r["serial"]: r["at_ns"] for r in seen if r.name == "arrived"}
    started: dict[int, int] = {}
    for record in (r for r in seen if r.name == "scheduled"):
        for serial, _, _ in record["prefill"]:
            started.setdefault(serial, record["at_ns"])
    theirs = {r["serial"]: r["engine_queue_ns"] for r in seen if r.name == "finished"}
    known = {serial: ns for serial, ns in theirs.items() if ns is not None}
    assert known.keys() == started.keys()
    apart = [started[serial] - arrived[serial] - ns for serial, ns in known.items()]
    assert max(map(abs, apart)) < 100_000_000, "theirs ends where schedule() begins"
    assert max(known.values()) > 0


@pytest.mark.parametrize("name", ["woken", "woken_async"])
def test_woken_under_load_it_splits_phases_as_if_it_had_been_there(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    seen = decisions(run)
    assert run.more["slept"] > 40
    assert run.more["faults"] == 0
    assert sum(d["prefill_tokens"] for d in seen) == run.counted["prefill"]
    assert sum(d["decode_tokens"] for d in seen) == run.counted["decode"]
    assert sum(d["n_decode"] + d["n_prefill"] for d in seen) == run.counted["members"]
    counters = run.fold().totals.counters
    violated = {law: n for (name, law), n in counters.items() if name == "audit_violations"}
    assert not sum(violated.values()), violated


@pytest.mark.parametrize("name", EXPECTED)
def test_each_way_to_be_left_out_has_its_reason_and_position(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    found = [(REASON[d["admission_stop"]], deferred(d)) for d in decisions(run)]
    assert EXPECTED[name] in found, found
    assert run.more["faults"] == 0


@pytest.mark.parametrize("name", ["lora", "grammar", "transfer"])
def test_a_skipped_request_is_blocked_once_and_unblocked_once(
    scenarios: Scenarios, name: str
) -> None:
    run = run_of(scenarios, name)
    edges = [record for record in run.records() if record.name in ("blocked", "unblocked")]
    assert {REASON[edge["reason"]] for edge in edges} == {name}
    begun = [edge["serial"] for edge in edges if edge.name == "blocked"]
    ended = [edge["serial"] for edge in edges if edge.name == "unblocked"]
    assert sorted(begun) == sorted(ended) == sorted(set(begun))


def test_a_reset_of_the_cache_preempts_by_policy_and_loses_what_was_computed(
    scenarios: Scenarios,
) -> None:
    run = run_of(scenarios, "reset")
    seen = run.records()
    lost = [record for record in seen if record.name == "preempted"]
    assert [REASON[record["reason"]] for record in lost] == ["policy"] * 3
    assert [record["lost_tokens"] for record in lost] == [62] * 3
    back = [record for record in seen if record.name == "resumed"]
    assert [record["target_tokens"] for record in back] == [63] * 3
    assert REASON[decisions(run)[3]["admission_stop"]] is None, "not preempted in this decision"


def test_the_head_is_the_first_that_was_not_passed_over(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "kv_blocks")
    first = decisions(run)[0]
    arrived = [record["serial"] for record in run.records() if record.name == "arrived"]
    assert first["head_serial"] == arrived[first["n_prefill"]]


def test_an_equal_prefix_is_found_in_the_cache(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "cached_prefix")
    starts = [start for d in decisions(run) for _, start, _ in d["prefill"] if start]
    assert starts == [64], "four of five blocks: the last token must be computed"


def test_hello_says_what_runs_and_what_can_be_seen_of_it(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "token_budget")
    fold = run.fold()
    hello = fold.hello
    assert hello["kind"] == "vllm"
    assert hello["version"].startswith(run.version)
    assert hello["block_tokens"] == 16
    assert hello["config"]["scheduler_config"]["max_num_batched_tokens"] == 256
    assert not any(name.startswith("seam:") for name in hello["provides"])


def test_who_leaves_has_one_end_whatever_its_state(scenarios: Scenarios) -> None:
    run = run_of(scenarios, "aborts")
    seen = run.records()
    names = {r["serial"]: r["key_text"] for r in seen if r.name == "arrived"}
    ends = [(names[r["serial"]], str(END[r["reason"]])) for r in seen if r.name == "finished"]
    assert len(ends) == len(dict(ends)) == run.counted["arrived"]
    left = run.more["left"]
    assert left.keys() >= {"WAITING", "BLOCKED", "INSIDE", "DECODE", "PREEMPTED"}
    assert {dict(ends)[name] for name in left.values()} == {"abort"}
    counters = run.fold().totals.counters
    assert {word: counters["requests_finished", (word,)] for word in run.ends} == run.ends
    assert counters["scheduled_tokens", ("prefill",)] == run.counted["prefill"]
    violated = {law: n for (metric, law), n in counters.items() if metric == "audit_violations"}
    assert not sum(violated.values()), violated
    assert run.more["faults"] == 0


def test_an_adapters_name_and_the_priority_are_labels_of_the_arrival(
    scenarios: Scenarios,
) -> None:
    seen = run_of(scenarios, "lora").records()
    texts = {r["string"]: r["text"] for r in seen if r.name == "string"}
    found = {r["key_text"]: texts[r["lora"]] for r in seen if r.name == "arrived"}
    assert found == {"r0": "lora0", "r1": "lora1", "r2": "lora0", "r3": "lora1"}
    arrived = [r for r in run_of(scenarios, "priority").records() if r.name == "arrived"]
    if arrived[0]["priority"] is not None:
        assert [r["priority"] for r in arrived] == [i % 3 for i in range(8)]


def test_pictures_that_do_not_fit_the_encoder_wait_for_a_reason_that_is_not_revealed(
    scenarios: Scenarios,
) -> None:
    run = run_of(scenarios, "encoder")
    left_out = [deferred(decision) for decision in decisions(run)]
    assert sum(n for rows in left_out for n, _, _ in rows) == 3
    assert {why for rows in left_out for _, why, _ in rows} == {"unknown"}
    assert run.fold().totals.counters["scheduled_tokens", ("prefill",)] == run.counted["prefill"]
    assert run.more["faults"] == 0
