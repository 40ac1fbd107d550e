"""The cost model: prices to the nanosecond, on whatever clock it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100, CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.sequence import Sequence

if TYPE_CHECKING:
    from tests.engine.conftest import VirtualClock


def batch(*members: tuple[int, int]) -> Batch:
    """A batch of members given as (tokens computed before, tokens now)."""
    made = Batch(0, None)
    for index, (start, tokens) in enumerate(members):
        seq = Sequence(str(index), [5] * (start + tokens), 8, arrival_ns=0)
        seq.num_computed = start
        made.add(seq, tokens)
    return made


@pytest.mark.parametrize(
    ("members", "price_ns"),
    [
        ([(0, 1)], 1_000_000 + 9_300_000 + 85),
        ([(999, 1)] * 64, 1_000_000 + 9_300_000 + 64 * 1000 * 85),
        ([(0, 133)], 1_000_000 + 133 * 70_000 + 133 * 85),
        ([(0, 512)], 1_000_000 + 35_840_000 + 512 * 85),
        ([(999, 1)] * 10 + [(1024, 502)], 1_000_000 + 35_840_000 + (10_000 + 1526) * 85),
    ],
)
def test_a_batch_costs_what_the_table_says(members: list[tuple[int, int]], price_ns: int) -> None:
    assert SEVEN_B_A100.price_ns(batch(*members)) == price_ns


def test_a_run_takes_exactly_its_price_on_the_given_clock(clock: VirtualClock) -> None:
    CostRunner(clock=clock, sleep=clock.sleep).run(batch((0, 512), (99, 1)))
    assert clock.now_ns == SEVEN_B_A100.price_ns(batch((0, 512), (99, 1)))


def test_a_late_sleeper_is_not_asked_to_sleep_a_negative_time() -> None:
    readings = iter([0, 10**12])
    slept: list[float] = []
    CostRunner(clock=lambda: next(readings), sleep=slept.append).run(batch((0, 1)))
    assert slept == [0.0]


def test_only_members_that_reach_their_last_token_are_sampled(clock: VirtualClock) -> None:
    made = batch((0, 4), (3, 1))
    made.members[0].seq.prompt.append(6)
    assert set(CostRunner(clock=clock, sleep=clock.sleep).run(made)) == {"1"}


def test_sampled_tokens_stay_in_the_vocabulary_and_never_stop_a_request(
    clock: VirtualClock,
) -> None:
    runner = CostRunner(vocab_size=11, clock=clock, sleep=clock.sleep)
    tokens = [runner.run(batch((n, 1)))["0"] for n in range(200)]
    assert set(tokens) <= set(range(1, 11))
    assert len(set(tokens)) > 5


def test_an_engine_on_the_wall_clock_keeps_the_pace_of_its_table() -> None:
    engine = Engine(EngineConfig(runner="cost"))
    engine.submit("a", [1, 2, 3], 5)
    began = engine.clock()
    while engine.has_work():
        engine.step()
    took_ms = (engine.clock() - began) / 1e6
    assert 5 * 10.3 <= took_ms < 10 * 5 * 10.3
