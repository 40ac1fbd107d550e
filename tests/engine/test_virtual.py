"""Virtual time: only work and waiting for arrivals move the clock, to the nanosecond."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100
from batchscope.engine.limits import RequestRejected
from batchscope.engine.virtual import Simulation

DECODE_NS = SEVEN_B_A100.fixed_ns + SEVEN_B_A100.floor_ns
KV_NS = SEVEN_B_A100.per_kv_token_ns
SECOND = 1_000_000_000


class Row(NamedTuple):
    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    abort_after_ns: int | None = None


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(runner="cost", enable_prefix_caching=False, **changes)


def test_tokens_come_when_the_cost_table_says() -> None:
    run = Simulation(config()).run([Row(0, 3 * SECOND, 10, 3)])
    first = 3 * SECOND + DECODE_NS + 10 * KV_NS
    second = first + DECODE_NS + 11 * KV_NS
    third = second + DECODE_NS + 12 * KV_NS
    (served,) = run.served
    assert served.token_ns == [first, second, third]
    assert served.ttft_ns == DECODE_NS + 10 * KV_NS
    assert served.gaps_ns == [second - first, third - second]
    assert run.clock.now_ns == third


def test_who_arrives_during_an_iteration_has_waited_for_its_end() -> None:
    run = Simulation(config()).run([Row(0, 0, 10, 2), Row(1, 1, 10, 1)])
    late = run.served[1]
    assert late.seq.arrival_ns == 1
    # one iteration of the other alone, then one with both
    assert late.ttft_ns == (DECODE_NS + 10 * KV_NS) + (DECODE_NS + 21 * KV_NS) - 1


def test_an_idle_engine_skips_to_the_next_arrival_without_an_iteration() -> None:
    run = Simulation(config()).run([Row(0, 0, 4, 1), Row(1, 3600 * SECOND, 4, 1)])
    assert [step.began_ns for step in run.steps] == [0, 3600 * SECOND]


def test_a_client_that_vanishes_frees_its_blocks_at_its_instant() -> None:
    run = Simulation(config()).run([Row(0, 0, 40, 1000, abort_after_ns=SECOND)])
    assert run.engine.totals.aborted == 1
    assert run.clock.now_ns - SECOND < DECODE_NS + 200 * KV_NS
    assert run.engine.scheduler.blocks.used == 0


def test_a_step_says_how_full_the_pool_was() -> None:
    run = Simulation(config(policy="orca")).run([Row(0, 0, 20, 30), Row(1, 0, 20, 1)])
    first, second, *_ = run.steps
    assert (first.members, first.prefill_tokens, first.requests) == (2, 40, 1)
    assert (first.kv_blocks, first.kv_tokens) == (4, 20)
    assert (second.decode_tokens, second.kv_tokens) == (1, 21)


def test_a_run_ends_at_the_time_given() -> None:
    simulation = Simulation(config(), start_ns=5 * SECOND)
    simulation.run([Row(0, 0, 4, 8000)], until_ns=6 * SECOND)
    assert 0 <= simulation.clock.now_ns - 6 * SECOND < DECODE_NS + 200 * KV_NS
    assert simulation.engine.has_work()


def test_a_request_that_can_never_run_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(RequestRejected):
        Simulation(config()).run([Row(0, 0, 9000, 1)])
