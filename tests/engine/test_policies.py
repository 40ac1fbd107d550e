"""What tells the policies apart: who joins when, who stalls, what is reserved, who gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchscope.engine.batch import Batch, StopReason
from batchscope.engine.config import EngineConfig
from batchscope.engine.policies import POLICIES
from batchscope.engine.sequence import FinishReason

if TYPE_CHECKING:
    from tests.engine.conftest import Audited


def config(policy: str, **changes: Any) -> EngineConfig:
    small: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": 64,
        "max_model_len": 64,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 8,
        "enable_prefix_caching": False,
    }
    return EngineConfig(runner="cost", policy=policy, **(small | changes))


def ids(count: int, first: int = 1) -> list[int]:
    return list(range(first, first + count))


def shares(batch: Batch) -> list[tuple[str, int, bool]]:
    return [(m.seq.request_id, m.tokens, m.is_prefill) for m in batch.members]


def test_static_admits_nobody_before_the_last_of_the_batch_has_ended(
    audited: type[Audited],
) -> None:
    engine = audited(config("static"))
    for name, outputs in (("a", 2), ("b", 5), ("c", 1), ("d", 1)):
        engine.add(name, ids(10), outputs)
    batches = engine.run()
    assert [[name for name, *_ in shares(batch)] for batch in batches] == [
        ["a", "b", "c"],
        ["a", "b"],
        ["b"],
        ["b"],
        ["b"],
        ["d"],
    ]
    stops = [batch.stop for batch in batches]
    assert stops == [StopReason.MAX_SEQS, *[StopReason.BATCH_HELD] * 4, None]
    assert {batch.budget for batch in batches} == {None}


def test_static_reserves_the_longest_request_and_early_finishers_keep_it(
    audited: type[Audited],
) -> None:
    engine = audited(config("static"))
    first = engine.add("a", ids(5), 1)
    engine.add("b", ids(5), 3)
    engine.step()
    assert first.finish_reason is FinishReason.LENGTH
    assert engine.scheduler.held == [first]
    for used in (32, 32, 0):
        assert engine.scheduler.blocks.used == used
        if used:
            engine.step()
    assert engine.scheduler.held == []


def test_a_static_batch_whose_members_all_vanish_frees_everything(audited: type[Audited]) -> None:
    engine = audited(config("static"))
    seqs = [engine.add(name, ids(5), 4) for name in "ab"]
    engine.step()
    for seq in seqs:
        engine.end(seq, FinishReason.ABORT)
    assert (engine.scheduler.blocks.used, engine.scheduler.held) == (0, [])


def test_orca_runs_whole_prompts_beside_decodes_and_joins_at_the_next_iteration(
    audited: type[Audited],
) -> None:
    engine = audited(config("orca"))
    engine.add("a", ids(20), 2)
    engine.add("b", ids(3), 4)
    engine.step()
    engine.add("c", ids(30), 2)
    engine.add("d", ids(9), 1)
    batch = engine.step()
    assert shares(batch) == [("a", 1, False), ("b", 1, False), ("c", 30, True)]
    assert (batch.stop, batch.budget) == (StopReason.MAX_SEQS, None)
    assert shares(engine.step()) == [("b", 1, False), ("c", 1, False), ("d", 9, True)]


@pytest.mark.parametrize(("reservation", "used"), [("max_tokens", 4), ("max_model_len", 16)])
def test_orca_reserves_at_admission_what_it_is_told(
    audited: type[Audited], reservation: str, used: int
) -> None:
    engine = audited(config("orca", reservation=reservation))
    engine.add("a", ids(5), 8)
    for _ in range(8):
        engine.step()
        assert engine.scheduler.blocks.used == (used if engine.scheduler.live else 0)


def test_orca_never_preempts_however_small_the_pool(audited: type[Audited]) -> None:
    engine = audited(config("orca", num_blocks=6))
    for name in "abcd":
        engine.add(name, ids(6), 10)
    first, *_ = engine.run()
    assert (len(first.members), first.stop) == (1, StopReason.NO_BLOCKS)
    assert engine.scheduler.totals.preemptions == 0


def test_paged_stalls_all_decodes_while_a_prompt_can_enter(audited: type[Audited]) -> None:
    engine = audited(config("paged"))
    engine.add("a", ids(20), 5)
    engine.step()
    engine.step()
    engine.add("b", ids(30), 5)
    batch = engine.step()
    assert shares(batch) == [("b", 30, True)]
    assert [len(seq.output) for seq in engine.scheduler.running] == [2, 1]
    assert shares(engine.step()) == [("a", 1, False), ("b", 1, False)]


def test_paged_batches_whole_prompts_within_its_budget(audited: type[Audited]) -> None:
    engine = audited(config("paged", max_model_len=24))
    for name in "abc":
        engine.add(name, ids(12), 2)
    batch = engine.step()
    assert shares(batch) == [("a", 12, True), ("b", 12, True)]
    assert (batch.budget, batch.stop) == (24, StopReason.TOKEN_BUDGET)


def test_paged_keeps_its_watermark_and_preempts_the_latest(audited: type[Audited]) -> None:
    engine = audited(config("paged", num_blocks=7, watermark_blocks=1))
    first, second = (engine.add(name, ids(8), 12) for name in "ab")
    third = engine.add("c", ids(12), 2)
    batch = engine.step()
    assert (batch.stop, batch.stop_head) == (StopReason.WATERMARK, third)
    while not batch.preempted:
        batch = engine.step()
    assert (batch.preempted[0][0], batch.stop) == (second, StopReason.PREEMPTED_THIS_STEP)
    assert [m.seq for m in batch.members] == [first]
    assert list(engine.scheduler.waiting) == [second, third]


@pytest.mark.parametrize("policy", ["orca", "paged", "chunked"])
def test_a_delay_keeps_that_many_iterations_between_admissions(
    audited: type[Audited], policy: str
) -> None:
    engine = audited(config(policy, admit_delay=3, max_num_batched_tokens=64))
    engine.add("a", ids(4), 12)
    engine.step()
    engine.add("b", ids(4), 12)
    stops = [engine.step().stop for _ in range(4)]
    assert stops == [*[StopReason.ADMIT_DELAY] * 3, None]


@pytest.mark.parametrize("policy", ["orca", "paged", "chunked"])
def test_slots_are_filled_only_when_enough_are_free(audited: type[Audited], policy: str) -> None:
    engine = audited(config(policy, admit_min_free=2, max_num_batched_tokens=64))
    for name, outputs in (("a", 3), ("b", 6), ("c", 9), ("d", 1), ("e", 1)):
        engine.add(name, ids(4), outputs)
    batches = engine.run()
    assert batches[2].stop is StopReason.MAX_SEQS
    assert batches[3].stop is StopReason.ADMIT_MIN_FREE
    joined = [index for index, batch in enumerate(batches) if batch.num_prefill_tokens]
    assert joined == [0, 6]


@pytest.mark.parametrize("policy", ["static", "orca"])
def test_a_pool_that_never_holds_the_reservation_is_refused_at_the_start(policy: str) -> None:
    with pytest.raises(ValueError, match="max_model_len 257"):
        config(policy, reservation="max_model_len", max_model_len=257)


def test_paged_refuses_more_slots_than_its_budget_has_tokens() -> None:
    with pytest.raises(ValueError, match="max_num_seqs must be at most 64"):
        config("paged", max_num_seqs=65)


events = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 12)),
    st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    st.tuples(st.sampled_from(["abort", "fail"]), st.integers(0, 99), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    events=st.lists(events, max_size=30),
    blocks=st.integers(16, 60),
    seqs=st.integers(1, 5),
    patience=st.tuples(st.integers(0, 3), st.integers(0, 1)),
    caching=st.booleans(),
)
def test_every_law_holds_under_every_policy(
    audited: type[Audited],
    policy: str,
    events: list[tuple[str, int, int]],
    blocks: int,
    seqs: int,
    patience: tuple[int, int],
    caching: bool,
) -> None:
    engine = audited(
        config(
            policy,
            num_blocks=blocks,
            max_num_seqs=seqs,
            admit_delay=patience[0],
            admit_min_free=patience[1],
            enable_prefix_caching=caching,
        )
    )
    for number, event in enumerate(events):
        apply(engine, f"r{number}", *event)
        engine.check_totals()
    engine.run()
    engine.check_totals()
    assert (engine.scheduler.blocks.used, engine.scheduler.held) == (0, [])


def apply(engine: Audited, name: str, kind: str, first: int, second: int) -> None:
    scheduler = engine.scheduler
    if kind == "add":
        engine.add(name, ids(first, first % 3), second)
    elif kind == "step":
        for _ in range(first):
            if scheduler.live:
                engine.step()
    elif scheduler.live:
        seq = list(scheduler.live.values())[first % len(scheduler.live)]
        engine.end(seq, FinishReason.ABORT if kind == "abort" else FinishReason.ERROR)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12))
def test_no_policy_changes_the_tokens(
    audited: type[Audited], lengths: list[tuple[int, int]]
) -> None:
    def outputs(policy: str) -> list[list[int]]:
        engine = audited(config(policy, num_blocks=18))
        seqs = [engine.add(str(i), ids(n, i), m) for i, (n, m) in enumerate(lengths)]
        engine.run()
        return [seq.output for seq in seqs]

    assert outputs("static") == outputs("orca") == outputs("paged") == outputs("chunked")
