"""The open-loop client: against servers that do as a test says, and against the bundled one."""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.support.engine_server import serving
from tests.workload.scripted_server import Asked, Fate, scripted

from batchscope.engine.cost import CostTable
from batchscope.workload.orders import Dialect
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.replay import Played, Replay
from batchscope.workload.trace import NEVER_NS, Trace
from batchscope.workload.wire import Wire

MS = 1_000_000


def trace(at_ms: list[float], *, prompt: int = 3, output: int = 2, **columns: Any) -> Trace:
    n = len(at_ms)
    return Trace(
        at_ns=np.array([round(ms * MS) for ms in at_ms]),
        prompt_tokens=np.full(n, prompt),
        output_tokens=np.full(n, output),
        **columns,
    )


async def play(url: str, offered: Trace, *, prompt: str = "ids", **options: Any) -> Played:
    dialect = Dialect(None, "run", prompt=prompt)
    return await asyncio.wait_for(Replay(offered, Wire(url), dialect.order, **options).run(), 30)


def played(fate: Fate, offered: Trace, **options: Any) -> Played:
    async def run() -> Played:
        async with scripted(fate) as url:
            return await play(url, offered, **options)

    return asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.005)


async def well(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7, 8)
    await asked.end(output=2)


async def refuse(asked: Asked, status: int) -> None:
    await asked.answer(status, b'{"error": {"message": "because %d"}}' % status)


async def fails_midway(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7)
    await asked.event({"error": {"message": "the iteration failed"}})


async def breaks_midway(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7)


async def ends_too_soon(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7)
    await asked.say("0\r\n\r\n")


async def hangs_up_behind_the_last_word(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7)
    await asked.event("[DONE]")


async def goes_back(asked: Asked) -> None:
    await asked.stream()
    await asked.say("3\r\nabc\r\n-e\r\n")


async def hangs(asked: Asked) -> None:
    await asked.stream()
    await asked.tokens(7)
    await asyncio.sleep(60)


FATES: list[tuple[Any, Status, str]] = [
    (well, Status.OK, ""),
    (lambda a: refuse(a, 429), Status.SHED, "because 429"),
    (lambda a: refuse(a, 503), Status.SHED, "because 503"),
    (lambda a: refuse(a, 400), Status.REFUSED, "because 400"),
    (lambda a: refuse(a, 500), Status.FAILED, "because 500"),
    (fails_midway, Status.FAILED, "the server says: the iteration failed"),
    (breaks_midway, Status.BROKEN, "the stream was cut off"),
    (ends_too_soon, Status.BROKEN, "the stream ended before the answer did"),
    (hangs_up_behind_the_last_word, Status.OK, ""),
    (goes_back, Status.BROKEN, "'-e' is not a size"),
    (hangs, Status.TIMEOUT, "no end within 1 s"),
]


def test_every_end_is_counted_as_what_it_is() -> None:
    async def fate(asked: Asked) -> None:
        await FATES[asked.ordinal][0](asked)

    seen = played(fate, trace([10 * n for n in range(len(FATES))]), timeout_s=1.0)
    for one, (_, status, why) in zip(seen.outcomes, FATES, strict=True):
        assert (one.status, one.why) == (status, why), one
        assert one.ended_ns is not None
    assert seen.ended == Counter(status for _, status, _ in FATES)
    assert [one.http_status for one in seen.outcomes] == [200, 429, 503, 400, 500, *[200] * 6]


def test_a_client_that_leaves_before_it_is_sent_has_left_and_was_not_shed() -> None:
    seen = played(well, trace([0, 1, 2], abort_after_ns=np.array([0, 1, NEVER_NS])))
    assert [one.status for one in seen.outcomes] == [Status.LEFT, Status.LEFT, Status.OK]
    assert seen.ended == Counter({Status.LEFT: 2, Status.OK: 1})
    assert all(one.ended_ns is not None for one in seen.outcomes)


def test_a_server_that_isnt_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    seen = asyncio.run(play(f"http://127.0.0.1:{port}", trace([0, 1])))
    assert [one.status for one in seen.outcomes] == [Status.UNREACHABLE] * 2
    assert all("onnect" in one.why for one in seen.outcomes)


def test_nobody_waits_for_answers_to_send() -> None:
    """The server answers none before all have come: a client that waited would wait for ever."""
    came: list[int] = []
    all_came = asyncio.Event()

    async def fate(asked: Asked) -> None:
        came.append(asked.ordinal)
        if len(came) == 30:
            all_came.set()
        await all_came.wait()
        await well(asked)

    seen = played(fate, trace([2 * n for n in range(30)]))
    assert seen.ended == Counter({Status.OK: 30})
    assert seen.most_under_way == 30


def test_beyond_the_cap_none_is_sent_and_all_are_counted() -> None:
    release = asyncio.Event()

    async def fate(asked: Asked) -> None:
        assert asked.ordinal < 3
        await release.wait()
        await well(asked)

    async def run() -> Played:
        async with scripted(fate) as url:
            order = Dialect(None, "run").order
            replay = Replay(trace([0, 1, 2, 3, 4]), Wire(url), order, most=3)
            running = asyncio.create_task(replay.run())
            await until(lambda: len(replay.played.outcomes) == 5)
            release.set()
            return await asyncio.wait_for(running, 10)

    seen = asyncio.run(run())
    assert [one.status for one in seen.outcomes] == [Status.OK] * 3 + [Status.UNSENT] * 2
    assert seen.ended == Counter({Status.OK: 3, Status.UNSENT: 2})
    assert (seen.most_under_way, seen.cap) == (3, 3)
    assert seen.outcomes[4].sent_ns is None
    assert seen.outcomes[4].why == "3 requests were under way"


def test_instants_of_sending_are_the_traces_and_lateness_is_told() -> None:
    offered = trace([0, 40, 40, 90])
    seen = played(well, offered)
    due = [one.scheduled_ns - seen.start_ns for one in seen.outcomes]
    assert due == offered.at_ns.tolist()
    for one in seen.outcomes:
        assert one.sent_ns is not None
        assert one.sent_ns >= one.scheduled_ns
        assert one.lateness_ns == one.sent_ns - one.scheduled_ns


def test_a_client_that_vanishes_hangs_up_and_is_no_failure() -> None:
    gone = asyncio.Event()

    async def fate(asked: Asked) -> None:
        await asked.stream()
        try:
            for n in range(1000):
                await asked.tokens(n)
                await asyncio.sleep(0.005)
        except ConnectionError:
            gone.set()

    async def run() -> Played:
        async with scripted(fate) as url:
            leaves = np.array([60 * MS, NEVER_NS])
            seen = await play(url, trace([0, 0], abort_after_ns=leaves), timeout_s=0.5)
            await asyncio.wait_for(gone.wait(), 10)
            return seen

    seen = asyncio.run(run())
    assert [one.status for one in seen.outcomes] == [Status.LEFT, Status.TIMEOUT]
    assert len(seen.outcomes[0].token_ns) > 1


def test_an_interrupt_ends_what_is_under_way_and_keeps_what_was_seen() -> None:
    async def run() -> Played:
        async with scripted(lambda asked: hangs(asked) if asked.ordinal else well(asked)) as url:
            order = Dialect(None, "run").order
            replay = Replay(trace([0, 20, 10_000]), Wire(url), order)
            running = asyncio.create_task(replay.run())
            await until(lambda: any(one.token_ns for one in replay.played.outcomes[1:]))
            replay.stop()
            return await asyncio.wait_for(running, 5)

    seen = asyncio.run(run())
    assert [one.status for one in seen.outcomes] == [Status.OK, Status.CUT]
    assert seen.interrupted


def test_who_listens_hears_every_end() -> None:
    ends: list[int] = []

    def heard(outcome: Outcome) -> None:
        ends.append(outcome.arrival.ordinal)

    played(well, trace([0, 5, 10]), heard=heard)
    assert sorted(ends) == [0, 1, 2]


def test_the_real_server_gives_exactly_the_lengths_of_the_trace() -> None:
    offered = Trace(
        at_ns=np.array([0, 5 * MS, 5 * MS, 30 * MS]),
        prompt_tokens=np.array([1, 40, 700, 33]),
        output_tokens=np.array([1, 2, 30, 90]),
    )
    with serving() as (url, engine):
        seen = asyncio.run(play(url, offered))
        totals = engine.totals.as_dict()
    assert seen.ended == Counter({Status.OK: 4})
    assert [one.prompt_tokens for one in seen.outcomes] == offered.prompt_tokens.tolist()
    assert [one.output_tokens for one in seen.outcomes] == offered.output_tokens.tolist()
    assert [len(one.token_ns) for one in seen.outcomes] == offered.output_tokens.tolist()
    assert [one.finish_reason for one in seen.outcomes] == ["length"] * 4
    assert [one.answer_id for one in seen.outcomes] == [f"cmpl-run-{n}" for n in range(4)]
    assert [one.echoed_id for one in seen.outcomes] == [f"run-{n}" for n in range(4)]
    assert totals["requests"]["finished"] == 4
    assert totals["tokens"]["output"] == offered.output_tokens.sum()
    for one in seen.outcomes:
        stamps = [one.scheduled_ns, one.sent_ns, *one.token_ns, one.ended_ns]
        assert all(a <= b for a, b in pairwise(stamps))  # type: ignore[operator]


@pytest.mark.parametrize("spelled", ["text", "chat"])
def test_texts_and_chats_are_served_too(spelled: str) -> None:
    with serving() as (url, _):
        seen = asyncio.run(play(url, trace([0, 1], prompt=9, output=5), prompt=spelled))
    assert seen.ended == Counter({Status.OK: 2})
    assert [one.output_tokens for one in seen.outcomes] == [5, 5]


def test_a_client_that_vanishes_frees_the_engines_pages() -> None:
    slow = CostTable("slow", fixed_ns=5 * MS, floor_ns=0, per_token_ns=0, per_kv_token_ns=0)
    offered = trace([0], output=500, abort_after_ns=np.array([300 * MS]))
    with serving(table=slow) as (url, engine):  # which insists on no page in use at its end
        seen = asyncio.run(play(url, offered))
    assert seen.outcomes[0].status is Status.LEFT
    assert engine.totals.aborted == 1


def test_overload_is_shed_and_what_can_never_run_refused() -> None:
    slow = CostTable("slow", fixed_ns=20 * MS, floor_ns=0, per_token_ns=0, per_kv_token_ns=0)
    offered = Trace(
        at_ns=np.arange(6) * MS,
        prompt_tokens=np.array([9000, 8, 8, 8, 8, 8]),
        output_tokens=np.full(6, 5),
    )
    with serving(table=slow, max_waiting=2, max_num_seqs=1) as (url, _):
        seen = asyncio.run(play(url, offered))
    assert seen.outcomes[0].status is Status.REFUSED
    assert "max_model_len" in seen.outcomes[0].why
    assert seen.ended[Status.SHED] >= 1
    assert seen.ended[Status.OK] + seen.ended[Status.SHED] == 5


def test_shared_blocks_of_a_trace_hit_the_engines_prefix_cache_exactly() -> None:
    """One runs at a time, so a hit is what any earlier prompt holds: whole engine blocks of 16, but
    for the prompt's last token, which is computed in any case.
    """
    size, prompts = 40, [200, 200, 130, 80, 200]
    prefix = ((1, 2, 3, 4, 5), (1, 2, 3, 6, 7), (1, 2, 8, 9), (1, 2), (1, 2, 3, 4, 5))
    common = [0, 3 * size, 2 * size, 2 * size, 5 * size]
    pairs = zip(common, prompts, strict=True)
    expected = [16 * min(same // 16, (n - 1) // 16) for same, n in pairs]
    offered = Trace(
        at_ns=np.arange(5) * MS,
        prompt_tokens=np.array(prompts),
        output_tokens=np.full(5, 2),
        prefix=prefix,
        block_tokens=size,
    )
    with serving(max_num_seqs=1) as (url, engine):
        seen = asyncio.run(play(url, offered))
    assert seen.ended == Counter({Status.OK: 5})
    assert engine.totals.cached == sum(expected) == 448
    assert engine.totals.prefill == sum(prompts) - sum(expected)
