"""vLLM's objects in our terms, on fakes; the real scheduler is under tests/engines."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from batchscope.adapters import vllm as ours
from batchscope.adapters.facts import Decision
from batchscope.adapters.vllm import about, admission, batches, requests
from batchscope.adapters.vllm.shape import Shape, is_checked
from batchscope.adapters.vllm.view import RESTS, Now, View, view_of
from batchscope.schemas.reasons import DeferralReason, codes
from batchscope.schemas.ring import LEVEL_ITERATIONS, LEVEL_MEMBERS

WHY = codes(DeferralReason)
SHAPE: dict[str, Any] = {
    "version": "0.32.0",
    "preempts": "_preempt_request",
    "passed_over": "deferred_waiting",
    "holding": "kv_holding_waiting",
    "limit": "max_num_active_reqs",
    "counts_streaming": True,
    "sessions": False,
    "throttles": True,
    "prefill_interval": 1,
    "pauses": True,
    "one_output": False,
    "plain": True,
    "block_tokens": 16,
    "groups": 1,
    "watermark_blocks": 0,
    "caches": True,
    "chunks": True,
    "spec_tokens": 0,
    "input_tokens": 256,
    "draft_slots": 0,
    "ambiguous": False,
    "lora_slots": 0,
    "random_ids": True,
    "hops": False,
    "counts_bytes": False,
    "counts_graphs": False,
    "ranks": 1,
}


def req(name: str, *, prompt: int = 20, output: int = 0, computed: int = 0, **own: Any) -> Any:
    fields = {
        "request_id": name,
        "num_prompt_tokens": prompt,
        "num_tokens": prompt + output,
        "num_output_tokens": output,
        "num_computed_tokens": computed,
        "status": SimpleNamespace(name="WAITING"),
        "lora_request": None,
    }
    return _Hashable(**{**fields, **own})


class _Hashable(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self is other


def running(name: str, **fields: Any) -> Any:
    return req(name, status=SimpleNamespace(name="RUNNING"), **fields)


def view(*, runs: list[Any], waits: list[Any], free: int = 50, **shape: Any) -> View:
    blocks = SimpleNamespace(
        num_gpu_blocks=101,
        get_num_free_blocks=lambda: free,
        cached_block_hash_to_block=range(70),
    )
    scheduler = SimpleNamespace(
        requests={r.request_id: r for r in runs + waits},
        running=runs,
        waiting=deque(waits),
        kv_holding_waiting=deque(),
        deferred_waiting=set(),
        kv_cache_manager=SimpleNamespace(block_pool=blocks),
        max_num_scheduled_tokens=256,
        max_num_active_reqs=8,
        num_waiting_for_streaming_input=0,
        prefill_capacity_bound=True,
        _pause_state=SimpleNamespace(name="UNPAUSED"),
    )
    return view_of(scheduler, Shape(**{**SHAPE, **shape}), Now())


def batch(tokens: dict[str, int], *, new: tuple[str, ...] = (), **drafts: list[int]) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_spec_decode_tokens=drafts,
    )


def split(seen: View, of: Any) -> batches.Split:
    return batches.split(seen, of, batches.admitted(seen, of))


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("cmpl-abc-0-1f2e3d4c", "cmpl-abc"),
        ("cmpl-a-b-12-1f2e3d4c", "cmpl-a-b"),
        ("chatcmpl-77-1f2e3d4c", "chatcmpl-77"),
        ("mine", "mine"),
    ],
)
def test_the_clients_id_is_without_tail_and_index(inside: str, outside: str) -> None:
    assert requests.client_id(inside) == outside


def test_a_traceparent_is_two_ids_and_anything_else_is_none() -> None:
    found = requests.trace({"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    assert found == (b"\xab" * 16, b"\xcd" * 8)
    assert requests.trace({"traceparent": "00-nonsense"}) is None
    assert requests.trace(None) is None


def test_every_end_of_vllm_has_one_of_ours() -> None:
    assert requests.FINISH["FINISHED_ABORTED"] == 3
    assert requests.FINISH["FINISHED_IGNORED"] == requests.FINISH["FINISHED_LENGTH_CAPPED"]


def test_only_versions_that_were_run_are_checked() -> None:
    assert [is_checked(v) for v in ("0.8.5", "0.32.0+cpu", "0.33.1")] == [True] * 3
    assert [is_checked(v) for v in ("0.8.4", "0.34.0", "0.1.dev7", "dev", "1.0.0")] == [False] * 5


def event(kind: str, at: float) -> Any:
    return SimpleNamespace(type=SimpleNamespace(name=kind), timestamp=at)


def test_vllms_own_queue_time_is_from_its_events_while_it_has_both() -> None:
    both = [event("QUEUED", 10.0), event("SCHEDULED", 10.5)]
    assert requests.queue_ns(req("a", events=both)) == 500_000_000
    assert requests.queue_ns(req("a", events=both[1:])) is None
    assert requests.queue_ns(req("a")) is None


def test_progress_leaves_out_the_tokens_of_the_decision_being_told() -> None:
    one = running("a", prompt=20, computed=20)
    assert requests.progress(one, in_step={"a": 12}).computed_tokens == 8
    assert requests.progress(one, in_step={}).computed_tokens == 20


def test_a_prompt_in_chunks_is_prefill_until_its_last_token() -> None:
    old, new = running("old", output=3, computed=22), running("new", prompt=40, computed=0)
    seen = view(runs=[old, new], waits=[])
    seen.prefilling.clear()
    old.num_computed_tokens, new.num_computed_tokens = 23, 30
    first = split(seen, batch({"old": 1, "new": 30}, new=("new",)))
    assert (first.prefill, first.prefill_tokens) == ([(new, 0, 30)], 30)
    assert list(first.decodes) == [old]
    new.num_computed_tokens = 40
    assert list(seen.partial.values()) == [["new"]], "it can't emit yet"
    seen.partial.clear()
    second = split(seen, batch({"old": 1, "new": 10}))
    assert second.prefill == [(new, 30, 10)]
    assert not seen.partial
    new.num_computed_tokens, new.num_tokens = 41, 41
    assert list(split(seen, batch({"old": 1, "new": 1})).decodes) == [old, new]


def test_who_is_met_in_the_middle_is_inside_the_prompt_or_behind_it() -> None:
    inside, behind = running("in", prompt=40, computed=32), running("out", output=3, computed=22)
    again = running("again", prompt=20, output=9, computed=16)
    assert view(runs=[inside, behind, again], waits=[]).prefilling == {"in": 40, "again": 29}


def test_a_full_hit_but_one_token_is_still_prefill() -> None:
    new = running("new", prompt=33, computed=33)
    seen = view(runs=[new], waits=[])
    assert split(seen, batch({"new": 1}, new=("new",))).prefill == [(new, 32, 1)]


def test_what_a_preempted_request_computes_again_is_prefill_output_included() -> None:
    back = running("back", prompt=20, output=10, computed=30)
    seen = view(runs=[back], waits=[])
    seen.away["back"] = None
    joined = batches.admitted(seen, batch({"back": 14}))
    assert batches.resumed(seen, joined) == [back]
    assert batches.split(seen, batch({"back": 14}), joined).prefill == [(back, 16, 14)]
    assert not seen.away


def test_drafts_are_decode_tokens_of_their_member() -> None:
    one = running("a", output=3, computed=26)
    seen = view(runs=[one], waits=[], spec_tokens=3)
    found = split(seen, batch({"a": 4}, a=[7, 7, 7]))
    assert (found.drafts, found.draft_tokens, found.prefill_tokens) == ([(one, 4)], 3, 0)


def test_a_chunk_met_without_having_seen_its_begin_is_recognised() -> None:
    late = running("late", prompt=100, computed=64)
    seen = view(runs=[late], waits=[])
    seen.prefilling.clear()
    seen.now.in_step = {"late": 32}
    assert split(seen, batch({"late": 32})).prefill == [(late, 32, 32)]


def out(name: str, tokens: int) -> Any:
    return SimpleNamespace(request_id=name, new_token_ids=[7] * tokens)


def result(*outs: Any) -> dict[int, Any]:
    return {0: SimpleNamespace(outputs=list(outs))}


def test_members_that_are_silent_or_emit_several_are_named() -> None:
    seen = view(runs=[running("a"), running("b"), running("c")], waits=[])
    of = batch({"a": 1, "b": 1, "c": 8})
    seen.cannot_emit(of, ["c"])
    silent = [(requests.Gone("c"), 0)]
    assert batches.emissions(seen, result(out("a", 1), out("b", 1)), of) == silent
    several = [(requests.Gone("a"), 3), *silent]
    assert batches.emissions(seen, result(out("a", 3), out("b", 1)), of) == several


def test_a_member_that_is_gone_is_named_by_its_id() -> None:
    seen = view(runs=[running("a")], waits=[])
    of = batch({"a": 1, "gone": 1})
    assert batches.emissions(seen, result(out("a", 1)), of) == [(requests.Gone("gone"), 0)]


def test_a_failed_end_beside_a_silent_member_does_not_look_like_an_emission() -> None:
    seen = view(runs=[running("a"), running("b")], waits=[])
    seen.errors = 1
    of = batch({"a": 1, "b": 1})
    silent = [(requests.Gone("b"), 0)]
    assert batches.emissions(seen, result(out("a", 1), out("failed", 0)), of) == silent


def test_what_is_in_flight_of_a_session_belongs_to_the_turn_that_ended() -> None:
    talk = running("talk")
    seen = view(runs=[talk], waits=[], sessions=True)
    of, turn = batch({"talk": 1}), seen.turn(talk)
    assert batches.emissions(seen, result(), of) == [(turn, 0)]
    assert (turn.request_id, turn.num_prompt_tokens) != (talk.request_id, 0)
    batches.admitted(seen, batch({"talk": 1}, new=("talk",)))
    assert batches.emissions(seen, result(), of) == [(requests.Gone("talk"), 0)]


def test_a_session_that_rests_does_not_wait_and_its_mark_means_nothing() -> None:
    rests = req("talk", status=SimpleNamespace(name=RESTS))
    seen = view(runs=[], waits=[rests], sessions=True)
    seen.scheduler.num_waiting_for_streaming_input = 1
    seen.scheduler.deferred_waiting.add(rests)
    assert not admission.skipped(seen)
    decided = batches.decision(seen, batch({}), (), at_ns=0, schedule_ns=0)
    assert (decided.waiting, list(decided.deferred)) == (0, [])
    rests.status = SimpleNamespace(name="WAITING")
    assert not admission.skipped(seen), "the mark stays until it is admitted"


def test_the_pool_is_without_vllms_own_block() -> None:
    seen = view(runs=[running("a")], waits=[], free=50)
    assert batches.pool(seen) == (100, 50, 21)


def stopped(seen: View, of: Any) -> tuple[int, Any]:
    return admission.left_out(seen, of, len(seen.scheduler.waiting))[:2]


def test_the_scan_is_read_in_the_order_in_which_it_stops() -> None:
    head = req("head")
    seen = view(runs=[running(f"r{i}") for i in range(8)], waits=[head])
    of = batch({"r0": 256})
    assert stopped(seen, of) == (WHY[DeferralReason.TOKEN_BUDGET], None)
    assert stopped(seen, batch({"r0": 1})) == (WHY[DeferralReason.MAX_REQUESTS], None)
    seen.scheduler.running.pop()
    assert stopped(seen, batch({"r0": 1})) == (WHY[DeferralReason.KV_BLOCKS], head)
    seen.scheduler._pause_state.name = "PAUSED_NEW"
    assert stopped(seen, of) == (WHY[DeferralReason.PAUSED], None)
    seen.preempted = True
    assert stopped(seen, of) == (WHY[DeferralReason.PREEMPTION], None)


def test_a_watermark_is_the_reason_only_where_the_whole_prompt_would_fit() -> None:
    seen = view(runs=[running("a")], waits=[req("head", prompt=160)], free=10, watermark_blocks=5)
    assert stopped(seen, batch({"a": 1}))[0] == WHY[DeferralReason.KV_WATERMARK]
    seen = view(runs=[running("a")], waits=[req("head", prompt=161)], free=10, watermark_blocks=5)
    assert stopped(seen, batch({"a": 1}))[0] == WHY[DeferralReason.KV_BLOCKS]


def test_what_vllm_does_not_reveal_is_unknown() -> None:
    seen = view(runs=[running("a")], waits=[req("head")], ambiguous=True)
    assert stopped(seen, batch({"a": 1}))[0] == WHY[DeferralReason.UNKNOWN]


def test_throttled_prefills_are_told_from_a_full_pool() -> None:
    seen = view(runs=[running("a")], waits=[req("head")])
    seen.held_back = True
    assert stopped(seen, batch({"a": 1}))[0] == WHY[DeferralReason.KV_BLOCKS]
    seen.scheduler.prefill_capacity_bound = False
    assert stopped(seen, batch({"a": 1}))[0] == WHY[DeferralReason.PREFILL_THROTTLE]


def test_a_grammar_that_is_ready_ends_the_skipping_before_the_admission() -> None:
    held = req("held", status=SimpleNamespace(name="WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"))
    seen = view(runs=[running("a")], waits=[held])
    seen.scheduler.deferred_waiting = {held}
    grammar = WHY[DeferralReason.GRAMMAR]
    assert list(admission.skipped(seen)) == [(held, grammar, True)]
    assert stopped(seen, batch({"a": 1})) == (0, None)
    assert list(admission.skipped(seen)) == []
    held.status = SimpleNamespace(name="WAITING")
    assert list(admission.skipped(seen)) == [(held, grammar, False)]
    assert stopped(seen, batch({"a": 1})) == (WHY[DeferralReason.KV_BLOCKS], held)


def test_up_to_0_16_the_skipped_are_those_in_front() -> None:
    held = req("held", status=SimpleNamespace(name="WAITING_FOR_FSM"))
    head, last = req("head"), req("last")
    seen = view(runs=[running("a")], waits=[held, head, last], passed_over="", holding="")
    assert list(admission.skipped(seen)) == [(held, WHY[DeferralReason.GRAMMAR], True)]
    code, found, rows = admission.left_out(seen, batch({"a": 1}), 3)
    assert (code, found) == (WHY[DeferralReason.KV_BLOCKS], head)
    assert [n for n, _, _ in rows] == [1, 1, 1], "skipped, head, behind"


def test_hello_has_plain_settings_only() -> None:
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=16, hidden=object(), _private=1, sizes=[1, 2]),
        parallel_config=SimpleNamespace(data_parallel_rank=3),
        kv_transfer_config=SimpleNamespace(kv_role="kv_producer"),
    )
    assert about.config(config)["cache_config"] == {"block_size": 16, "sizes": [1, 2]}
    assert about.rank(config) == 3
    assert about.role(config) == "prefill"


def decoding(name: str) -> Any:
    return running(name, num_computed_tokens=21, num_tokens=21)


def told(
    seen: View, of: Any, *, settled: bool = True, known: str = "ab", level: int = LEVEL_MEMBERS
) -> list[Any]:
    """How on_schedule tells a decision: the arguments of `went_on`, or a Decision, or both."""
    before = [seen.scheduler.requests[name] for name in known]
    calls: list[Any] = []

    def went_on(_batch: Any, *facts: Any) -> bool:
        calls.append(facts)
        return settled

    recorder = SimpleNamespace(went_on=went_on, scheduled=lambda _, found: calls.append(found))
    recorder.level, recorder.decodes = level, SimpleNamespace(settled=before)
    recorder.blocked = recorder.resumed = lambda *_, **__: None
    ours.on_schedule(SimpleNamespace(subject=seen, recorder=recorder), (10, 30, 5), of)
    return calls


def in_full(facts: Any, decodes: list[Any]) -> Decision:
    """What `went_on` would write."""
    n, at_ns, schedule_ns, budget, (waiting, stop, head, deferred), pool = facts
    found = (at_ns, schedule_ns, 0, n, n, waiting, decodes, (), (), deferred, budget, 0, head, stop)
    return Decision(*found, *pool)


@pytest.mark.parametrize("waits", [0, 3])
@pytest.mark.parametrize("limit", [2, 8])
def test_the_usual_decision_is_what_a_look_at_everything_finds(waits: int, limit: int) -> None:
    queue = [req(f"w{n}", prompt=2000) for n in range(waits)]
    seen = view(runs=[decoding("a"), decoding("b")], waits=queue)
    seen.scheduler.max_num_active_reqs = limit
    of = batch({"a": 1, "b": 1})
    looked_at = batches.decision(seen, of, (), at_ns=30, schedule_ns=15)
    for level in (LEVEL_ITERATIONS, LEVEL_MEMBERS):
        (facts,) = told(seen, of, level=level)
        assert in_full(facts, seen.scheduler.running) == looked_at
    assert told(seen, of, settled=False)[-1] == looked_at


def test_members_other_than_the_last_are_looked_at_unless_nobody_is_named() -> None:
    seen, of = view(runs=[decoding("a"), decoding("b")], waits=[]), batch({"a": 1, "b": 1})
    (found,) = told(seen, of, known="a")
    assert isinstance(found, Decision)
    (counted,) = told(seen, of, known="a", level=LEVEL_ITERATIONS)
    assert not isinstance(counted, Decision)


def test_what_was_preempted_and_held_back_is_of_the_last_decision_only() -> None:
    seen, of = view(runs=[decoding("a"), decoding("b")], waits=[]), batch({"a": 1, "b": 1})
    seen.held_back = seen.preempted = True
    told(seen, of)
    assert (seen.held_back, seen.preempted) == (False, False)


@pytest.mark.parametrize(
    "change",
    [
        lambda seen, of: of.num_scheduled_tokens.update(c=1),
        lambda seen, of: of.__dict__.update(total_num_scheduled_tokens=3),
        lambda seen, of: of.scheduled_new_reqs.append(SimpleNamespace(req_id="b")),
        lambda seen, of: seen.prefilling.update(a=20),
        lambda seen, of: seen.away.update(z=None),
        lambda seen, of: seen.passed.update(z=1),
        lambda seen, of: skip(seen, req("w")),
        lambda seen, of: seen.scheduler.running.pop(),
    ],
)
def test_any_other_decision_is_looked_at(change: Any) -> None:
    seen, of = view(runs=[decoding("a"), decoding("b")], waits=[]), batch({"a": 1, "b": 1})
    assert not isinstance(told(seen, of)[0], Decision)
    change(seen, of)
    (found,) = told(seen, of)
    assert isinstance(found, Decision)


def skip(seen: View, request: Any) -> None:
    """It waits and is marked as passed over."""
    seen.scheduler.waiting.append(request)
    seen.scheduler.deferred_waiting.add(request)


def test_where_skipped_requests_bear_no_mark_a_queue_is_always_looked_at() -> None:
    seen = view(runs=[decoding("a")], waits=[req("w")], passed_over="", holding="")
    (found,) = told(seen, batch({"a": 1}), known="a")
    assert isinstance(found, Decision)


def test_where_nobody_is_scheduled_that_is_not_the_usual_decision() -> None:
    (found,) = told(view(runs=[], waits=[]), batch({}), known="")
    assert isinstance(found, Decision)


@pytest.mark.parametrize(
    ("outputs", "usual"),
    [([("a", 1), ("b", 1)], True), ([("a", 1)], False), ([("a", 2), ("b", 0)], True)],
)
def test_as_many_outputs_as_members_are_one_token_of_each(outputs: Any, usual: bool) -> None:
    """An output without a token, or with two, comes from engines that are not `plain` alone."""
    seen, calls = view(runs=[decoding("a"), decoding("b")], waits=[]), list[Any]()
    recorder = SimpleNamespace(completed=lambda _, **facts: calls.append(facts))

    def came_back(*facts: Any) -> bool:
        calls.append(facts)
        return True

    recorder.came_back = came_back
    outs = [SimpleNamespace(request_id=n, new_token_ids=[1] * k) for n, k in outputs]
    watch = SimpleNamespace(subject=seen, recorder=recorder)
    of = batch({"a": 1, "b": 1})
    ours.on_update(watch, (10, 30, 5), {0: SimpleNamespace(outputs=outs)}, of, SimpleNamespace())
    assert calls == ([(of, 10)] if usual else [calls[0]])
    assert usual or calls[0]["emitted"] == [(requests.Gone("b"), 0)]
