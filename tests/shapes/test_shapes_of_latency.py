"""S6-S9 and S13: what a prompt does to the tokens of others, and real arrivals to a queue."""

from __future__ import annotations

from tests.shapes.runs import (
    config,
    is_rising,
    like_poisson,
    offered,
    poisson,
    recorded,
    tbt_ms,
    ttft_ms,
)

from batchscope.engine.split import run_split
from batchscope.engine.virtual import Simulation

BUDGETS = (256, 512, 1024, 2048)


def tail_at(budget: int) -> float:
    return tbt_ms(offered("chunked", 2.5, 800, max_num_batched_tokens=budget), 99)


def test_shape_s06_whole_prompts_stall_the_tokens_of_others() -> None:
    assert tbt_ms(offered("paged", 2.5, 800), 99) > 4 * tail_at(512)


def test_shape_s07_a_larger_budget_makes_the_tail_between_tokens_longer() -> None:
    tails = [tail_at(budget) for budget in BUDGETS]
    assert is_rising(tails)
    assert 2.5 <= tails[3] / tails[1] <= 4.5


def test_shape_s08_a_larger_budget_brings_the_first_token_sooner_at_light_load() -> None:
    """One request each 20 s: hardly anyone meets another."""
    runs = [offered("chunked", 0.05, 150, max_num_batched_tokens=budget) for budget in BUDGETS]
    assert is_rising([-ttft_ms(run, 50) for run in runs])


def slower_than_poisson(name: str, requests: int | None = None) -> float:
    """TTFT P99 of the trace's own arrivals over that of independent ones."""
    trace = recorded(name, requests)
    own, independent = (
        Simulation(config("chunked")).run(each) for each in (trace, like_poisson(trace))
    )
    return ttft_ms(own, 99) / ttft_ms(independent, 99)


def test_shape_s09_bursts_of_real_code_traffic_are_nothing_like_poisson() -> None:
    assert slower_than_poisson("code") > 10


def test_shape_s09_real_conversations_are_nearly_poisson() -> None:
    """The first 13 minutes."""
    assert 0.5 < slower_than_poisson("conv", 4000) < 2


def decode_tail(rate_per_s: float) -> float:
    """TBT P99 of the decode engine alone, which admits by all tokens to come, as DistServe's."""
    trace = poisson("sharegpt", 500, rate_per_s=rate_per_s)
    decode = config("orca", reservation="max_tokens")
    split = run_split(trace, prefill=config("paged"), decode=decode)
    return tbt_ms(split.decode, 99)


def test_shape_s13_decodes_apart_from_prompts_keep_their_pace() -> None:
    slow, fast = decode_tail(2), decode_tail(4)
    assert slow < tail_at(512) < tbt_ms(offered("paged", 2.5, 800), 99)
    assert abs(fast / slow - 1) < 0.30
