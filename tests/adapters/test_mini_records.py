"""What the ring says about the bundled engine, against a spy of the test's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.drivers import MiniDriver
from tests.adapters.ring_records import Seen, read, records

from batchscope.adapters import boot, mini
from batchscope.engine.engine import Engine
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, Position
from batchscope.schemas.request_keys import read_salt, request_key
from batchscope.schemas.ring import RingReader, list_rings

GOLDEN = Path(__file__).parent / "golden" / "mini.txt"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        "BATCHSCOPE": "1",
        "BATCHSCOPE_DIR": str(tmp_path / "rings"),
        "BATCHSCOPE_REQUEST_IDS": "plain",
        "BATCHSCOPE_OVERHEAD": "0",
    }


def spied(engine: Engine) -> list[tuple[set[str], set[tuple[str, int, int]]]]:
    """(ids that decode, (id, start, tokens) that prefill) of each decision, noted inside ours."""
    decisions: list[tuple[set[str], set[tuple[str, int, int]]]] = []
    schedule = engine.scheduler.schedule

    def spy() -> Any:
        batch = schedule()
        decode = {m.seq.request_id for m in batch.members if not m.is_prefill}
        prefill = {(m.seq.request_id, m.start, m.tokens) for m in batch.members if m.is_prefill}
        decisions.append((decode, prefill))
        return batch

    engine.scheduler.schedule = spy  # type: ignore[method-assign]
    return decisions


def told(seen: list[Seen]) -> Iterator[tuple[set[str], set[tuple[str, int, int]]]]:
    """The same from the records alone. KeyError where a segment names whom it hasn't introduced."""
    names: dict[int, str] = {}
    decode: list[int] | None = None
    for record in seen:
        if record.name == "segment":
            names, decode = {}, None
        elif record.name in ("arrived", "live"):
            names[record["serial"]] = record["key_text"]
        elif record.name == "scheduled":
            if not record.flags & r.SAME_DECODES:
                decode = record["decode"]
            assert decode is not None, "the first decision of a segment names everybody"
            assert len(decode) == record["n_decode"]
            prefill = {(names[serial], start, n) for serial, start, n in record["prefill"]}
            yield {names.get(serial, "?") for serial in decode}, prefill


def test_members_of_every_decision_are_those_that_the_scheduler_chose(env: dict[str, str]) -> None:
    engine = MiniDriver(num_blocks=400, max_num_seqs=32, max_num_batched_tokens=128).engine()
    truth = spied(engine)
    boot.attach(mini.adapter(), engine, env)
    MiniDriver().run(engine, requests=300)
    seen = read(Path(env["BATCHSCOPE_DIR"]))
    assert list(told(seen)) == truth
    same = sum(bool(s.flags & r.SAME_DECODES) for s in seen if s.name == "scheduled")
    assert 0 < same < len(truth)


def test_every_segment_stands_alone(env: dict[str, str]) -> None:
    engine = MiniDriver(num_blocks=400, max_num_seqs=24, max_num_batched_tokens=128).engine()
    truth = spied(engine)
    boot.attach(mini.adapter(), engine, {**env, "BATCHSCOPE_RING_BYTES": str(1 << 20)})
    (path,) = list_rings(Path(env["BATCHSCOPE_DIR"]))
    reader, seen = RingReader(path), list[Seen]()
    MiniDriver().run(engine, requests=600, every_step=lambda step: seen.extend(records(reader)))
    segments = [i for i, record in enumerate(seen) if record.name == "segment"]
    assert len(segments) > 3, "64 KiB each"
    decisions = list(told(seen))
    assert len(decisions) == len(truth)
    unknown = 0
    for (decode, prefill), (true_decode, true_prefill) in zip(decisions, truth, strict=True):
        assert prefill == true_prefill, "named members are introduced at once"
        assert decode - {"?"} <= true_decode
        unknown += "?" in decode
    # 24 decode members, 2 introductions per iteration: all known 12 decisions after each switch
    assert 0 < unknown <= 12 * (len(segments) - 1)


def test_live_tells_the_state_before_the_record_that_follows(env: dict[str, str]) -> None:
    engine = MiniDriver(num_blocks=60, max_num_seqs=8).engine()
    handle = boot.attach(
        mini.adapter(), engine, {k: v for k, v in env.items() if k != "BATCHSCOPE"}
    )
    outputs: dict[str, int] = {}

    def wake(step: int) -> None:
        if step == 20:
            from batchscope.schemas.ring import set_level

            set_level(Path(env["BATCHSCOPE_DIR"]), str(handle.ring_uuid), 2)

    MiniDriver().run(engine, every_step=wake)
    emitted: dict[int, int] = {}
    decode: list[int] = []
    batches: dict[int, list[int]] = {}
    known: set[int] = set()
    for record in read(Path(env["BATCHSCOPE_DIR"])):
        match record.name:
            case "live" | "arrived":
                known.add(record["serial"])
                emitted[record["serial"]] = record.fields.get("output_tokens", 0)
            case "scheduled":
                decode = decode if record.flags & r.SAME_DECODES else record["decode"]
                rows = [*decode, *(serial for serial, _, _ in record["prefill"])]
                batches[record["iteration_id"]] = [s for s in rows if s in known]
            case "completed":
                silent = dict(record["emitted"])
                for serial in batches.pop(record["iteration_id"]):
                    emitted[serial] += silent.get(serial, 1)
            case "finished":
                assert emitted[record["serial"]] == record["output_tokens"]
                outputs[str(record["serial"])] = record["output_tokens"]
    assert len(outputs) > 10


def test_golden_records(env: dict[str, str]) -> None:
    ticks = count(1000)
    engine = MiniDriver(num_blocks=10, max_num_seqs=3, max_num_batched_tokens=32).engine(
        clock=lambda: next(ticks)
    )
    boot.attach(mini.adapter(), engine, env, clock=lambda: next(ticks))
    prompts = {"a": 40, "b": 70, "c": 20, "d": 64}
    for name, length in prompts.items():
        trace = (bytes(range(1, 17)), bytes(range(1, 9))) if name == "b" else None
        engine.submit(
            name, [7] * 16 + [ord(name)] * (length - 16), 28, tenant="red", trace_context=trace
        )
    engine.submit("e", [7] * 30, 5, priority=-1)
    for _ in range(12):
        engine.step()
    engine.abort("e")
    while engine.has_work():
        engine.step()
    assert engine.totals.preemptions
    text = "".join(f"{line(record)}\n" for record in read(Path(env["BATCHSCOPE_DIR"])))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def line(record: Seen) -> str:
    """Everything but what differs from run to run: keys by the salt, wall clock."""
    shown = {
        k: v for k, v in record.fields.items() if k not in ("key", "unix_ns") and v is not None
    }
    shown |= {k: v for k, v in record.tails.items() if v}
    return f"{record.name} {record.flags} " + " ".join(f"{k}={v}" for k, v in shown.items())


def test_keys_are_salted_hashes_that_the_exporter_can_make_again(env: dict[str, str]) -> None:
    folder = Path(env["BATCHSCOPE_DIR"])
    engine = MiniDriver().engine()
    boot.attach(mini.adapter(), engine, {**env, "BATCHSCOPE_REQUEST_IDS": "hash"})
    MiniDriver().run(engine, requests=4)
    arrived = [record for record in read(folder) if record.name == "arrived"]
    salt = read_salt(folder)
    assert salt is not None
    assert [a["key"] for a in arrived] == [request_key(f"r{i}", salt) for i in range(4)]
    assert {a["key_text"] for a in arrived} == {""}
    assert (folder / "ctl" / "salt").stat().st_mode & 0o777 == 0o600


def test_no_request_id_leaves_the_engine_when_none_is_asked_for(env: dict[str, str]) -> None:
    engine = MiniDriver().engine()
    boot.attach(mini.adapter(), engine, {**env, "BATCHSCOPE_REQUEST_IDS": "none"})
    MiniDriver().run(engine, requests=4)
    arrived = [s for s in read(Path(env["BATCHSCOPE_DIR"])) if s.name == "arrived"]
    assert [(a["key"], a["key_text"]) for a in arrived] == [(None, "")] * 4


def test_trace_context_arrives_whole(env: dict[str, str]) -> None:
    engine = MiniDriver().engine()
    boot.attach(mini.adapter(), engine, env)
    engine.submit("t", [1, 2], 1, trace_context=(bytes(range(16)), bytes(range(8))))
    engine.step()
    (arrived,) = (s for s in read(Path(env["BATCHSCOPE_DIR"])) if s.name == "arrived")
    trace = (arrived["trace_hi"] << 64) | arrived["trace_lo"]
    assert trace == int.from_bytes(bytes(range(16)), "big")
    assert arrived["parent_span"] == int.from_bytes(bytes(range(8)), "big")


@pytest.mark.parametrize("stop", ["token_budget", "max_seqs", "preempted_this_step"])
def test_a_global_reason_holds_for_every_waiter(stop: str) -> None:
    rows = mini.deferred(mini.STOP[stop], 10)
    assert rows == ((10, mini.STOP[stop], Position.GLOBAL.code),)


@pytest.mark.parametrize("stop", ["no_blocks", "watermark"])
def test_a_head_specific_reason_is_the_heads_and_the_others_stand_behind(stop: str) -> None:
    code = mini.STOP[stop]
    head, behind = Position.HEAD.code, Position.BEHIND.code
    assert mini.deferred(code, 10) == ((1, code, head), (9, code, behind))
    assert mini.deferred(code, 1) == ((1, code, head),)


def test_every_stop_and_end_of_the_engine_has_a_word_of_ours() -> None:
    from batchscope.engine.batch import StopReason
    from batchscope.engine.sequence import FinishReason

    assert set(mini.STOP) == {reason.value for reason in StopReason}
    assert set(mini.FINISH) == {reason.value for reason in FinishReason}
    assert DeferralReason.UNKNOWN.code not in mini.STOP.values()


def member(name: str, *, start: int, tokens: int, prefill: bool) -> Any:
    seq = SimpleNamespace(request_id=name)
    return SimpleNamespace(seq=seq, start=start, tokens=tokens, is_prefill=prefill)


def batch_of(*members: Any) -> Any:
    prefill = sum(m.tokens for m in members if m.is_prefill)
    return SimpleNamespace(
        members=list(members),
        num_prefill_tokens=prefill,
        num_decode_tokens=sum(m.tokens for m in members) - prefill,
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_the_split_is_right_wherever_the_prefill_members_stand(order: tuple[int, ...]) -> None:
    members = [
        member("a", start=9, tokens=1, prefill=False),
        member("b", start=9, tokens=1, prefill=False),
        member("c", start=0, tokens=8, prefill=True),
    ]
    batch = batch_of(*(members[i] for i in order))
    waiting = member("d", start=0, tokens=0, prefill=True)
    for running in (batch.members, [*batch.members, waiting], batch.members[::-1]):
        scheduler = SimpleNamespace(running=[m.seq for m in running])
        decodes, prefill = mini.split(scheduler, batch)
        assert {seq.request_id for seq in decodes} == {"a", "b"}
        assert [m.seq.request_id for m in prefill] == ["c"]


def test_a_member_that_left_before_its_output_emitted_nothing() -> None:
    batch = batch_of(
        member("a", start=9, tokens=1, prefill=False),
        member("b", start=9, tokens=1, prefill=False),
        member("c", start=0, tokens=8, prefill=True),
    )
    names = [
        [seq.request_id for seq, n in rows if n == 0]
        for rows in (
            mini.emissions(batch, {"a": 1, "b": 1, "c": 1}, frozenset()),
            mini.emissions(batch, {"a": 1, "b": 1}, frozenset()),
            mini.emissions(batch, {"a": 1, "b": 1}, frozenset({"b"})),
            mini.emissions(batch, {"b": 1, "c": 1}, frozenset()),
        )
    ]
    assert names == [[], ["c"], ["b", "c"], ["a"]]


def test_an_abort_between_decision_and_output_is_a_zero_in_completed(env: dict[str, str]) -> None:
    engine = MiniDriver().engine()
    boot.attach(mini.adapter(), engine, env)
    for name in "ab":
        engine.submit(name, [1, 2, 3], 5)
    engine.step()
    batch = engine.scheduler.schedule()
    engine.scheduler.abort("b")
    engine.scheduler.update(batch, {"a": 5, "b": 6})
    while engine.has_work():
        engine.step()
    seen = read(Path(env["BATCHSCOPE_DIR"]))
    completed = [record["emitted"] for record in seen if record.name == "completed"]
    assert completed[:3] == [[], [(2, 0)], []]
    ends = {
        record["serial"]: record["output_tokens"] for record in seen if record.name == "finished"
    }
    assert ends == {2: 1, 1: 5}


def test_a_failed_step_leaves_a_decision_without_completion(env: dict[str, str]) -> None:
    engine = MiniDriver().engine()
    boot.attach(mini.adapter(), engine, env)
    run, failures = engine.runner.run, iter([False, True])

    def failing(batch: Any) -> dict[str, int]:
        if next(failures, False):
            raise RuntimeError("the device is gone")
        return run(batch)

    engine.runner.run = failing  # type: ignore[method-assign]
    engine.submit("a", [1, 2, 3], 5)
    engine.step()
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    engine.submit("b", [1, 2, 3], 2)
    while engine.has_work():
        engine.step()
    seen = read(Path(env["BATCHSCOPE_DIR"]))
    scheduled = [record["iteration_id"] for record in seen if record.name == "scheduled"]
    completed = [record["iteration_id"] for record in seen if record.name == "completed"]
    assert (scheduled, completed) == ([1, 2, 3, 4], [1, 3, 4])
    assert [record["reason"] for record in seen if record.name == "finished"] == [4, 2]
