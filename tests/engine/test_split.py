"""Prefill and decode on engines of their own: who computes what, when, and that tokens stay."""

from __future__ import annotations

from typing import Any

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100
from batchscope.engine.engine import Engine
from batchscope.engine.split import Link, Row, run_split
from batchscope.engine.virtual import Simulation

LINK = Link(bytes_per_s=1e9, latency_ns=1000, kv_bytes_per_token=1000)
STEP_NS = SEVEN_B_A100.fixed_ns + SEVEN_B_A100.floor_ns
KV_NS = SEVEN_B_A100.per_kv_token_ns


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(runner="cost", **changes)


def test_prompts_run_on_one_engine_and_all_further_tokens_on_the_other() -> None:
    rows = [Row(i, i * 10_000_000, 40 + i, 5) for i in range(20)]
    prefill, decode = run_split(rows, prefill=config(), decode=config(), link=LINK)
    mine, theirs = prefill.engine.totals, decode.engine.totals
    assert (mine.prefill, mine.decode, mine.output) == (sum(40 + i for i in range(20)), 0, 20)
    assert (theirs.prefill, theirs.decode, theirs.output) == (0, 80, 80)


def test_the_second_token_comes_after_the_kv_has_crossed_the_link() -> None:
    prefill, decode = run_split([Row(0, 0, 40, 2)], prefill=config(), decode=config(), link=LINK)
    first = STEP_NS + 40 * KV_NS
    assert prefill.served[0].token_ns == [first]
    there = first + 1000 + 40 * 1000
    assert decode.served[0].seq.arrival_ns == there
    assert decode.served[0].token_ns == [there + STEP_NS + 41 * KV_NS]


def test_the_link_carries_one_prompt_at_a_time() -> None:
    rows = [Row(0, 0, 100, 2), Row(1, 0, 100, 2)]
    prefill, decode = run_split(rows, prefill=config(), decode=config(), link=LINK)
    done = prefill.served[0].token_ns[0]
    assert [s.seq.arrival_ns - done for s in decode.served] == [101_000, 202_000]


def test_no_token_changes_even_when_the_decode_engine_must_recompute() -> None:
    rows = [Row(i, i, 60, 40) for i in range(12)]
    whole = Simulation(config()).run(rows)
    small = config(num_blocks=30, max_model_len=256)
    _, decode = run_split(rows, prefill=config(), decode=small, link=LINK)
    assert decode.engine.totals.preemptions > 0
    assert decode.engine.totals.prefill == decode.engine.totals.recomputed > 0
    by_id = {served.seq.request_id: served.seq.output for served in decode.served}
    assert by_id == {served.seq.request_id: served.seq.output for served in whole.served}


def test_who_wants_one_token_never_leaves_the_first_engine() -> None:
    _, decode = run_split([Row(0, 0, 40, 1)], prefill=config(), decode=config(), link=LINK)
    assert decode.served == []


def test_received_kv_holds_pages_from_admission_on() -> None:
    engine = Engine(config(), runner=Simulation(config()).engine.runner)
    seq = engine.submit("a", [3] * 40, 3, generated=[7])
    batch_tokens = engine.step()
    assert batch_tokens == []
    assert (seq.num_computed, len(seq.block_table), len(seq.output)) == (41, 3, 2)


def test_an_observer_is_handed_both_engines_before_they_run() -> None:
    seen: list[tuple[Simulation, int]] = []

    def watch(engine: Simulation) -> None:
        seen.append((engine, len(engine.steps)))

    both = run_split([Row(0, 0, 40, 2)], prefill=config(), decode=config(), observed=watch)
    assert [steps for _, steps in seen] == [0, 0]
    assert all(engine is each for (engine, _), each in zip(seen, both, strict=True))
