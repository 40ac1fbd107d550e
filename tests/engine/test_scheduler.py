"""Scheduling decisions: chunks, order, reasons, preemption, and laws over any mix of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchscope.engine.batch import Batch, StopReason
from batchscope.engine.config import EngineConfig
from batchscope.engine.limits import RequestRejected
from batchscope.engine.sequence import FinishReason, Sequence, Status

if TYPE_CHECKING:
    from tests.engine.conftest import Audited


def config(**changes: Any) -> EngineConfig:
    small: dict[str, Any] = {"block_size": 4, "num_blocks": 64, "max_num_batched_tokens": 32}
    return EngineConfig(runner="cost", **(small | changes))


def shares(batch: Batch) -> list[tuple[str, int, int, bool]]:
    return [(m.seq.request_id, m.start, m.tokens, m.is_prefill) for m in batch.members]


def ids(count: int, first: int = 1) -> list[int]:
    return list(range(first, first + count))


def test_ten_tokens_in_chunks_of_four_are_four_four_two(audited: type[Audited]) -> None:
    engine = audited(config(max_num_batched_tokens=4))
    engine.add("a", ids(10), 2)
    batches = engine.run()
    assert [batch.num_prefill_tokens for batch in batches] == [4, 4, 2, 0]
    assert [batch.num_decode_tokens for batch in batches] == [0, 0, 0, 1]
    assert [batch.num_tokens for batch in batches] == [4, 4, 2, 1]


def test_only_the_last_chunk_emits_a_token(audited: type[Audited]) -> None:
    engine = audited(config(max_num_batched_tokens=4))
    seq = engine.add("a", ids(10), 2)
    lengths = []
    for _ in range(4):
        engine.step()
        lengths.append(len(seq.output))
    assert lengths == [0, 0, 1, 2]
    assert seq.finish_reason is FinishReason.LENGTH


def test_recompute_after_preemption_is_prefill_of_prompt_and_output(
    audited: type[Audited],
) -> None:
    engine = audited(config(enable_prefix_caching=False))
    seq = engine.add("a", ids(6), 8)
    for _ in range(3):
        engine.step()
    assert len(seq.output) == 3
    engine.preempt(seq)
    batch = engine.step()
    assert shares(batch) == [("a", 0, 9, True)]
    assert (batch.num_prefill_tokens, batch.num_decode_tokens) == (9, 0)
    assert (batch.resumed, seq.target, seq.num_preemptions) == ([seq], 9, 1)
    assert len(seq.output) == 4
    engine.run()
    assert engine.scheduler.totals.recomputed == 9
    engine.check_totals()


def test_what_the_cache_still_holds_is_not_recomputed_nor_counted_as_cached(
    audited: type[Audited],
) -> None:
    engine = audited(config())
    seq = engine.add("a", ids(6), 8)
    for _ in range(3):
        engine.step()
    engine.preempt(seq)
    batch = engine.step()
    assert shares(batch) == [("a", 8, 1, True)]
    assert seq.num_cached == 8
    assert engine.scheduler.totals.cached == 0


def test_decodes_come_first_and_a_prompt_takes_what_is_left(audited: type[Audited]) -> None:
    engine = audited(config(max_num_batched_tokens=8))
    engine.add("a", ids(3), 9)
    engine.add("b", ids(3, 50), 9)
    engine.step()
    engine.add("c", ids(20, 100), 9)
    assert shares(engine.step()) == [
        ("a", 3, 1, False),
        ("b", 3, 1, False),
        ("c", 0, 6, True),
    ]


def test_a_prompt_under_way_goes_before_new_ones(audited: type[Audited]) -> None:
    engine = audited(config(max_num_batched_tokens=8))
    engine.add("long", ids(10), 3)
    engine.add("short", ids(3, 50), 3)
    first, second = engine.step(), engine.step()
    assert shares(first) == [("long", 0, 8, True)]
    assert shares(second) == [("long", 8, 2, True), ("short", 0, 3, True)]
    assert (first.stop, first.stop_head is not None) == (StopReason.TOKEN_BUDGET, True)
    assert (second.stop, second.stop_head) == (None, None)


@pytest.mark.parametrize(
    ("changes", "prompts", "reason"),
    [
        ({"max_num_batched_tokens": 4}, [4, 4], StopReason.TOKEN_BUDGET),
        ({"max_num_seqs": 1}, [4, 4], StopReason.MAX_SEQS),
        ({"num_blocks": 3}, [8, 8], StopReason.NO_BLOCKS),
        ({"num_blocks": 6, "watermark_blocks": 3}, [8, 8], StopReason.WATERMARK),
    ],
)
def test_what_stopped_the_admissions_is_named(
    audited: type[Audited], changes: dict[str, int], prompts: list[int], reason: StopReason
) -> None:
    engine = audited(config(**changes))
    seqs = [engine.add(str(i), ids(n, 100 * i), 2) for i, n in enumerate(prompts)]
    batch = engine.step()
    assert (batch.stop, batch.stop_head) == (reason, seqs[1])
    assert engine.scheduler.totals.deferrals == {reason.value: 1}


def test_a_small_request_does_not_overtake_a_head_that_lacks_blocks(
    audited: type[Audited],
) -> None:
    engine = audited(config(num_blocks=10))
    engine.add("a", ids(24), 4)
    engine.add("big", ids(20, 100), 4)
    engine.add("small", ids(2, 200), 4)
    batch = engine.step()
    assert [name for name, *_ in shares(batch)] == ["a"]
    assert engine.scheduler.totals.deferrals == {"no_blocks": 2}


def test_the_latest_admitted_gives_way_and_nobody_enters_in_that_step(
    audited: type[Audited],
) -> None:
    engine = audited(config(num_blocks=5))
    first = engine.add("a", ids(7), 9)
    second = engine.add("b", ids(7, 50), 9)
    engine.step()
    engine.step()
    third = engine.add("c", ids(1, 90), 1)
    batch = engine.step()
    assert batch.preempted == [(second, 8)]
    assert batch.stop is StopReason.PREEMPTED_THIS_STEP
    assert list(engine.scheduler.waiting) == [second, third]
    assert [m.seq for m in batch.members] == [first]
    assert second.status is Status.PREEMPTED
    engine.run()
    engine.check_totals()


def test_a_shared_prompt_is_computed_once(audited: type[Audited]) -> None:
    engine = audited(config())
    engine.add("a", ids(10), 1)
    engine.run()
    seq = engine.add("b", [*ids(9), 99], 1)
    assert shares(engine.step()) == [("b", 8, 2, True)]
    assert (seq.num_cached, engine.scheduler.totals.cached) == (8, 8)


def test_a_prompt_that_is_wholly_cached_still_computes_its_last_block(
    audited: type[Audited],
) -> None:
    engine = audited(config())
    for name in ("a", "b"):
        engine.add(name, ids(8), 1)
        engine.run()
    assert shares(engine.batches[-1]) == [("b", 4, 4, True)]


def test_generated_tokens_are_found_by_the_next_turn(audited: type[Audited]) -> None:
    engine = audited(config())
    first = engine.add("a", ids(5), 8)
    engine.run()
    engine.add("b", [*first.prompt, *first.output, 7, 7], 1)
    assert shares(engine.step()) == [("b", 12, 3, True)]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "why"),
    [
        ([], 4, "empty"),
        ([1], 0, "max_tokens"),
        (ids(60), 41, "max_model_len 100"),
        (ids(50), 31, "room for 80"),
    ],
)
def test_a_request_that_can_never_run_is_refused_before_it_arrives(
    audited: type[Audited], prompt: list[int], max_tokens: int, why: str
) -> None:
    engine = audited(config(num_blocks=21, watermark_blocks=1, max_model_len=100))
    with pytest.raises(RequestRejected, match=why):
        engine.add("a", prompt, max_tokens)
    assert engine.scheduler.totals.arrived == 0
    assert not engine.scheduler.live


def test_the_largest_request_that_is_let_in_runs_to_its_end(audited: type[Audited]) -> None:
    engine = audited(config(num_blocks=21, watermark_blocks=1, max_num_batched_tokens=16))
    seq = engine.add("a", ids(40), 40)
    engine.run()
    assert (len(seq.output), seq.num_preemptions) == (40, 0)


def test_an_id_in_use_is_refused_and_free_again_at_the_end(audited: type[Audited]) -> None:
    engine = audited(config())
    engine.add("a", ids(3), 1)
    with pytest.raises(RequestRejected, match="in use"):
        engine.add("a", ids(3), 1)
    engine.run()
    engine.add("a", ids(3), 1)


def test_an_abort_gives_back_every_block_wherever_the_request_stands(
    audited: type[Audited],
) -> None:
    engine = audited(config(max_num_seqs=2, enable_prefix_caching=False))
    seqs = [engine.add(name, ids(9, 20 * i), 9) for i, name in enumerate("abc")]
    engine.step()
    for seq in seqs:
        engine.end(seq, FinishReason.ABORT)
    assert engine.scheduler.blocks.free == 64
    assert not engine.scheduler.abort("a")
    assert {seq.finish_reason for seq in seqs} == {FinishReason.ABORT}
    engine.check_totals()


def test_a_member_aborted_while_its_batch_runs_is_skipped(audited: type[Audited]) -> None:
    engine = audited(config())
    seq = engine.add("a", ids(3), 5)
    batch = engine.scheduler.schedule()
    engine.scheduler.abort("a")
    assert engine.scheduler.update(batch, {"a": 7}) == []
    assert (seq.output, engine.scheduler.totals.output) == ([], 0)


def test_the_stop_token_ends_only_those_who_mind_it(audited: type[Audited]) -> None:
    scheduler = audited(config()).scheduler
    for name, ignore in (("minds", False), ("ignores", True)):
        scheduler.add(Sequence(name, [1, 2], 5, arrival_ns=0, ignore_eos=ignore))
    finished = scheduler.update(scheduler.schedule(), {"minds": 0, "ignores": 0})
    assert [(seq.request_id, seq.finish_reason) for seq in finished] == [
        ("minds", FinishReason.STOP)
    ]


def test_wrappers_on_the_instance_see_every_preemption_and_end(audited: type[Audited]) -> None:
    engine = audited(config(num_blocks=5))
    seen: list[str] = []
    for name in ("preempt", "finish"):
        original = getattr(engine.scheduler, name)

        def watched(seq: Sequence, *rest: Any, name: str = name, call: Any = original) -> Any:
            seen.append(f"{name} {seq.request_id}")
            return call(seq, *rest)

        setattr(engine.scheduler, name, watched)
    engine.add("a", ids(7), 9)
    engine.add("b", ids(7, 50), 9)
    doomed = engine.add("c", ids(7, 90), 9)
    engine.end(doomed, FinishReason.ABORT)
    engine.run()
    assert sorted(set(seen)) == ["finish a", "finish b", "finish c", "preempt b"]
    assert len(seen) == 3 + engine.scheduler.totals.preemptions


events = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(0, 2),
        st.integers(1, 40),
        st.integers(1, 12),
    ),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["abort", "fail", "preempt"]), st.integers(0, 99)),
)


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(events, max_size=40),
    budget=st.integers(1, 24),
    blocks=st.integers(14, 40),
    seqs=st.integers(1, 6),
    watermark=st.integers(0, 1),
    caching=st.booleans(),
)
def test_every_law_holds_over_any_mix_of_events(
    audited: type[Audited],
    events: list[tuple[Any, ...]],
    budget: int,
    blocks: int,
    seqs: int,
    watermark: int,
    caching: bool,
) -> None:
    engine = audited(
        config(
            max_num_batched_tokens=budget,
            num_blocks=blocks,
            max_num_seqs=seqs,
            watermark_blocks=watermark,
            enable_prefix_caching=caching,
        )
    )
    for number, (kind, *values) in enumerate(events):
        apply(engine, kind, values, f"r{number}")
        engine.check_totals()
    engine.run()
    engine.check_totals()
    assert engine.scheduler.blocks.used == 0
    assert not engine.scheduler.running
    assert not engine.scheduler.waiting


def apply(engine: Audited, kind: str, values: list[int], name: str) -> None:
    scheduler = engine.scheduler
    if kind == "add":
        prefix, prompt_tokens, max_tokens = values
        engine.add(name, ids(prompt_tokens, prefix), max_tokens)
    elif kind == "step":
        for _ in range(values[0] if scheduler.live else 0):
            if scheduler.live:
                engine.step()
    elif kind == "preempt" and scheduler.running:
        engine.preempt(scheduler.running[values[0] % len(scheduler.running)])
    elif kind in ("abort", "fail") and scheduler.live:
        seq = list(scheduler.live.values())[values[0] % len(scheduler.live)]
        engine.end(seq, FinishReason.ABORT if kind == "abort" else FinishReason.ERROR)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=12),
    budget=st.integers(1, 64),
    blocks=st.integers(13, 30),
    caching=st.booleans(),
)
def test_no_schedule_changes_the_tokens(
    audited: type[Audited],
    lengths: list[tuple[int, int]],
    budget: int,
    blocks: int,
    caching: bool,
) -> None:
    def outputs(**changes: Any) -> list[list[int]]:
        engine = audited(config(**changes))
        seqs = [engine.add(str(i), ids(n, i), m) for i, (n, m) in enumerate(lengths)]
        engine.run()
        return [seq.output for seq in seqs]

    tight = outputs(max_num_batched_tokens=budget, num_blocks=blocks, enable_prefix_caching=caching)
    assert tight == outputs(max_num_batched_tokens=512, num_blocks=1000)
