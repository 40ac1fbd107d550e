"""A request over two engines: its tokens, its pages, and what becomes of both when one goes."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from tests.engine.halves import DEADLINE_S, Client, at_rest, engine, running, until

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.hop import Hop
from batchscope.engine.limits import RequestRejected
from batchscope.engine.loop import Stopped
from batchscope.engine.policies import POLICIES
from batchscope.engine.scheduler import Scheduler
from batchscope.engine.sequence import FinishReason, Sequence


def prompts(count: int = 16) -> list[list[int]]:
    """Of 5 to 90 tokens; every third begins with the same three blocks."""
    rng = random.Random(1)
    made = [[rng.randrange(1, 299) for _ in range(rng.randrange(5, 90))] for _ in range(count)]
    return [[7] * 48 + one if i % 3 == 0 else one for i, one in enumerate(made)]


def alone(asked: list[list[int]], tokens: int, **config: Any) -> list[list[int]]:
    """What one engine answers."""
    single = engine(**config)
    seqs = [single.submit(f"r{i}", prompt, tokens) for i, prompt in enumerate(asked)]
    while single.has_work():
        single.step()
    return [seq.output for seq in seqs]


def split(prefill: Engine, decode: Engine, asked: list[list[int]], tokens: int) -> list[list[int]]:
    """What the two answer; no page stays behind."""
    with running(prefill, decode) as pair:
        clients = [Client(pair.prefill, f"r{i}", one, tokens) for i, one in enumerate(asked)]
        answers = [client.wait() for client in clients]
        until(lambda: at_rest(pair))
    return answers


def watched(engine: Engine) -> list[Hop]:
    """The hops that the engine's scheduler is told of."""
    hops: list[Hop] = []
    counted = engine.scheduler.transferred

    def transferred(seq: Sequence, hop: Hop) -> None:
        hops.append(hop)
        counted(seq, hop)

    engine.scheduler.transferred = transferred  # type: ignore[method-assign]
    return hops


@pytest.mark.parametrize("blocks", [200, 20], ids=["roomy", "preempting"])
def test_tokens_are_those_of_one_engine_and_every_byte_is_accounted_for(blocks: int) -> None:
    asked = prompts()
    prefill = engine("torch", role="prefill", max_num_batched_tokens=96)
    decode = engine("torch", role="decode", num_blocks=blocks, max_model_len=256)
    out, into = watched(prefill), watched(decode)
    assert split(prefill, decode, asked, 20) == alone(asked, 20, runner="torch")
    mine, theirs = prefill.totals, decode.totals
    assert (mine.output, mine.decode, theirs.output) == (16, 0, 16 * 19)
    assert (theirs.preemptions > 0) == (theirs.recomputed > 0) == (blocks == 20)
    assert theirs.prefill == theirs.recomputed
    assert mine.cached > 0 < theirs.cached, "both sides have seen the beginning before"
    page = prefill.runner.page_bytes  # type: ignore[attr-defined]
    pages = sum(-(-len(one) // 16) for one in asked) - theirs.cached // 16
    assert mine.hop_blocks == theirs.hop_blocks == pages
    assert mine.hop_bytes == theirs.hop_bytes == pages * page
    assert sorted(hop.nbytes or 0 for hop in out) == sorted(hop.nbytes or 0 for hop in into)


def test_a_hop_is_wait_and_handshake_and_copy() -> None:
    prefill, decode = engine("torch", role="prefill"), engine("torch", role="decode")
    out, into = watched(prefill), watched(decode)
    split(prefill, decode, [[5] * 40], 3)
    (sent,), (came,) = out, into
    assert sent.wait_ns == came.wait_ns
    assert sent.handshake_ns is not None
    assert sent.copy_ns is not None
    assert min(sent.wait_ns or 0, sent.handshake_ns, sent.copy_ns) > 0
    assert sent.copy_ns > came.end_ns - came.start_ns - (came.wait_ns or 0) > 0
    assert sent.start_ns < came.start_ns < came.end_ns < sent.end_ns, "one clock on one host"
    assert (came.handshake_ns, came.copy_ns) == (None, None), "the taking side can't know it"


def test_what_the_decode_side_has_already_does_not_travel() -> None:
    prefill, decode = engine("torch", role="prefill"), engine("torch", role="decode")
    with running(prefill, decode) as pair:
        first = Client(pair.prefill, "a", [5] * 64, 3).wait()
        again = Client(pair.prefill, "b", [5] * 64, 3).wait()
    assert first == again
    assert decode.totals.hop_blocks == 4
    assert decode.totals.cached == 64
    assert decode.totals.hop_bytes == 4 * decode.runner.page_bytes  # type: ignore[attr-defined]


def test_one_token_is_the_prefill_sides_alone() -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode")
    split(prefill, decode, [[3] * 20], 1)
    assert (prefill.totals.hops, decode.totals.arrived) == (0, 0)


@pytest.mark.parametrize("policy", ["static", "orca", "paged", "chunked"])
def test_every_policy_splits_without_a_changed_token(policy: str) -> None:
    shape: dict[str, Any] = {
        "policy": policy,
        "num_blocks": 60,
        "max_model_len": 192,
        "max_num_seqs": 4,
    }
    asked = prompts()
    halves = engine(role="prefill", **shape), engine(role="decode", **shape)
    assert split(*halves, asked, 30) == alone(asked, 30, **shape)


def test_a_copy_that_fails_ends_its_request_and_nobody_elses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    prefill, decode = engine("torch", role="prefill"), engine("torch", role="decode")
    write, failures = decode.runner.write_pages, [RuntimeError("the device is upset")]  # type: ignore[attr-defined]

    def write_pages(blocks: list[int], content: bytes) -> None:
        if failures:
            raise failures.pop()
        write(blocks, content)

    decode.runner.write_pages = write_pages  # type: ignore[attr-defined]
    with running(prefill, decode) as pair:
        hurt, well = (Client(pair.prefill, name, [ord(name)] * 40, 4) for name in "ab")
        assert (len(hurt.wait()), len(well.wait())) == (1, 4)
        until(lambda: at_rest(pair))
    assert hurt.reason is FinishReason.ERROR
    assert "a was not taken: RuntimeError('the device is upset')" in capsys.readouterr().err


class Gated(CostRunner):
    """Computes when it is let to."""

    def __init__(self) -> None:
        super().__init__(sleep=lambda _: None)
        self.gate = threading.Event()

    def run(self, batch: Batch) -> dict[str, int]:
        assert self.gate.wait(DEADLINE_S)
        return super().run(batch)


def gated(**config: Any) -> Engine:
    """A decode engine that stands still until its runner's gate is set."""
    shape = engine(role="decode", **config).config
    return Engine(shape, runner=Gated())


def open_gate(decode: Engine) -> None:
    assert isinstance(decode.runner, Gated)
    decode.runner.gate.set()


def test_a_decode_side_that_stands_still_stops_admissions_and_all_goes_on_when_it_moves() -> None:
    prefill = engine(role="prefill", num_blocks=40, max_num_seqs=4, unaccepted_ratio=0.3)
    decode = gated()
    with running(prefill, decode) as pair:
        first = Client(pair.prefill, "first", [9] * 16, 4)
        until(lambda: decode.totals.iterations == 1, why="it never began")
        others = [Client(pair.prefill, f"r{i}", [i] * 64, 4) for i in range(12)]
        until(lambda: prefill.totals.deferrals.get("unaccepted", 0) > 20)
        kept = prefill.scheduler.kept_blocks
        assert prefill.config.unaccepted_blocks < kept <= prefill.scheduler.blocks.used
        assert prefill.scheduler.waiting
        assert not prefill.scheduler.running
        open_gate(decode)
        answers = [client.wait() for client in (first, *others)]
        until(lambda: at_rest(pair))
    assert [len(answer) for answer in answers] == [4] * 13
    assert prefill.totals.hops == decode.totals.hops == 13


def test_pages_of_a_client_that_left_are_free_only_when_the_other_side_reads_no_more() -> None:
    prefill, decode = engine(role="prefill"), gated()
    with running(prefill, decode) as pair:
        first = Client(pair.prefill, "first", [9] * 16, 4)
        until(lambda: decode.totals.iterations == 1)
        gone = Client(pair.prefill, "gone", [8] * 64, 4)
        until(lambda: bool(gone.tokens) and "gone" in prefill.scheduler.kept)
        pair.prefill.abort("gone")
        until(lambda: not prefill.has_work())
        assert "gone" in prefill.scheduler.kept, "the other side may be reading"
        open_gate(decode)
        first.wait()
        until(lambda: at_rest(pair))
    assert gone.reason is None
    assert (prefill.totals.hops, prefill.totals.hops_failed) == (1, 1)
    assert decode.totals.arrived == 1


def test_an_offer_for_which_there_was_no_room_is_taken_when_the_last_one_has_ended() -> None:
    prefill, decode = engine(role="prefill"), gated(num_blocks=8)
    with running(prefill, decode) as pair:
        clients = [Client(pair.prefill, name, [ord(name)] * 70, 4) for name in "ab"]
        until(lambda: "b" in prefill.scheduler.kept and decode.totals.iterations == 1)
        open_gate(decode)
        assert [len(client.wait()) for client in clients] == [4, 4]
        until(lambda: at_rest(pair))


def test_a_request_that_is_quicker_than_its_submission_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode")
    with running(prefill, decode) as pair:
        hand_in = pair.prefill._hand_in

        def late(*args: Any, **options: Any) -> None:
            hand_in(*args, **options)
            until(lambda: prefill.totals.hops == 1)

        monkeypatch.setattr(pair.prefill, "_hand_in", late)
        assert len(Client(pair.prefill, "a", [8] * 20, 4).wait()) == 4


@pytest.mark.parametrize("seed", range(5))
def test_whatever_clients_and_pools_do_nothing_is_lost_and_nothing_stays(seed: int) -> None:
    rng = random.Random(seed)
    policies = sorted(POLICIES)
    prefill, decode = (
        engine(
            role=role,
            num_blocks=rng.choice([24, 40, 200]),
            max_num_seqs=rng.choice([1, 4, 64]),
            max_model_len=256,
            policy=rng.choice(policies),
            unaccepted_ratio=rng.choice([0.1, 0.5]),
            backlog_ratio=rng.choice([0.1, 1.0]),
        )
        for role in ("prefill", "decode")
    )
    with running(prefill, decode) as pair:
        staying = []
        for number in range(40):
            prompt = [1] * 16 * rng.randrange(3) + [rng.randrange(299) for _ in range(1 + number)]
            client = Client(pair.prefill, f"r{number}", prompt, rng.randrange(1, 60))
            if rng.random() < 0.33:
                pair.prefill.abort(client.name)
            else:
                staying.append(client)
        for client in staying:
            client.wait()
        until(lambda: at_rest(pair))
    assert {client.reason for client in staying} == {FinishReason.LENGTH}
    mine, theirs = prefill.totals, decode.totals
    assert mine.hops == theirs.hops == theirs.arrived
    assert mine.hop_blocks == theirs.hop_blocks
    assert prefill.scheduler.kept_blocks == 0


def test_a_client_that_leaves_a_decode_frees_its_pages_there() -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode")
    decode.runner = CostRunner()  # 10 ms a token
    with running(prefill, decode) as pair:
        gone = Client(pair.prefill, "gone", [8] * 64, 400)
        until(lambda: len(gone.tokens) > 2)
        pair.prefill.abort("gone")
        until(lambda: at_rest(pair))
    assert (decode.totals.aborted, decode.totals.finished, gone.reason) == (1, 0, None)


def test_when_the_line_is_lost_both_sides_forget_and_requests_are_refused() -> None:
    prefill, decode = engine(role="prefill"), gated()
    with running(prefill, decode) as pair:
        taken = Client(pair.prefill, "taken", [9] * 16, 4)
        until(lambda: decode.totals.iterations == 1)
        offered = Client(pair.prefill, "offered", [8] * 64, 4)
        until(lambda: "offered" in prefill.scheduler.kept)
        assert pair.prefill._line is not None
        pair.prefill._line.hang_up()
        assert (len(taken.wait()), len(offered.wait())) == (1, 1)
        assert taken.reason is offered.reason is FinishReason.ERROR
        with pytest.raises(Stopped):
            Client(pair.prefill, "late", [8], 4)
        open_gate(decode)
        until(lambda: at_rest(pair))
    assert decode.totals.aborted == 1


def test_a_failed_iteration_of_the_decode_side_is_its_members_end() -> None:
    class Failing(CostRunner):
        def run(self, batch: Batch) -> dict[str, int]:
            raise RuntimeError(f"{len(batch.members)} members lost")

    prefill, decode = engine(role="prefill"), engine(role="decode")
    decode.runner = Failing()
    with running(prefill, decode) as pair:
        client = Client(pair.prefill, "a", [8] * 64, 4)
        client.wait()
        until(lambda: at_rest(pair))
    assert client.reason is FinishReason.ERROR


def test_engines_that_differ_do_not_work_together(capsys: pytest.CaptureFixture[str]) -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode", seed=1)
    said: list[str] = []

    def complained() -> bool:
        said.append(capsys.readouterr().err)
        return "the two engines differ in seed" in "".join(said)

    with running(prefill, decode, linked=False) as pair:
        until(complained)
        assert not pair.prefill.alive


def test_what_the_decode_side_could_never_hold_is_refused_at_the_door() -> None:
    prefill, decode = engine(role="prefill"), engine(role="decode", num_blocks=4)
    with (
        running(prefill, decode) as pair,
        pytest.raises(RequestRejected, match="is 70, the decode engine takes 64"),
    ):
        Client(pair.prefill, "a", [1] * 30, 40)


def received(name: str, tokens: int, *, limit: int) -> Sequence:
    """A request whose prompt was computed elsewhere."""
    seq = Sequence(name, [ord(name)] * tokens, limit, arrival_ns=0, given=1)
    seq.output.append(1)
    return seq


def stepped(scheduler: Scheduler, most: int = 400) -> list[str]:
    """Who ended, in order."""
    runner = CostRunner(sleep=lambda _: None)
    ended: list[str] = []
    for _ in range(most):
        if not scheduler.live:
            return ended
        batch = scheduler.schedule()
        assert batch.members or batch.preempted, "it stands still"
        ended += [seq.request_id for seq in scheduler.update(batch, runner.run(batch))]
    raise AssertionError("it never came to an end")


def test_pages_of_those_that_wait_never_bring_the_decode_side_to_a_stand() -> None:
    config = EngineConfig(
        runner="cost", num_blocks=10, max_model_len=160, max_num_seqs=2, backlog_ratio=1.0
    )
    scheduler = Scheduler(config, lambda: 0)
    for name in "abc":
        seq = received(name, 40, limit=100)
        assert scheduler.reserve(seq)
        scheduler.receive(seq)
        if name == "b":
            scheduler.schedule()  # both run; the third waits with its pages for a slot
    assert not scheduler.reserve(received("d", 40, limit=20)), "no room"
    assert sorted(stepped(scheduler)) == ["a", "b", "c"]
    assert scheduler.totals.preemptions > 0
    assert scheduler.blocks.used == 0


def test_nobody_is_taken_while_one_waits_that_lost_its_place() -> None:
    config = EngineConfig(runner="cost", num_blocks=10, max_model_len=160)
    scheduler = Scheduler(config, lambda: 0)
    scheduler.reserve(first := received("a", 40, limit=20))
    scheduler.receive(first)
    scheduler.schedule()
    scheduler.preempt(first)
    assert not scheduler.reserve(received("b", 4, limit=20))
    stepped(scheduler)
    assert scheduler.reserve(received("b", 4, limit=20))


def test_a_request_without_a_slot_holds_its_pages_and_gives_them_back_when_it_ends() -> None:
    config = EngineConfig(runner="cost", num_blocks=10, max_model_len=160, max_num_seqs=1)
    scheduler = Scheduler(config, lambda: 0)
    for name in "ab":
        seq = received(name, 40, limit=20)
        assert scheduler.reserve(seq)
        scheduler.receive(seq)
        scheduler.schedule()
    assert (scheduler.blocks.used, len(scheduler.waiting)) == (6, 1)
    assert not scheduler.reserve(received("c", 4, limit=20)), "the backlog is more than its share"
    scheduler.abort("b")
    assert (scheduler.blocks.used, len(scheduler.waiting)) == (3, 0)
