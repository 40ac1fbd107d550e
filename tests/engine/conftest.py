"""A virtual clock, and an audited scheduler that recounts everything from its batches."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.scheduler import Scheduler
from batchscope.engine.sequence import FinishReason, Sequence


@pytest.fixture(autouse=True, scope="session")
def _apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines started as a command load the installed adapter: not into this user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHSCOPE_DIR", str(tmp_path_factory.mktemp("rings")))
        yield


class VirtualClock:
    """Nanoseconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


class Audited:
    """A scheduler under a cost runner, with laws checked and figures recounted at every step.

    The recount knows only what a batch says (who, from where, how many tokens) and what the test
    itself asked for: it shares no counter with the engine.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        clock = VirtualClock()
        self.scheduler = Scheduler(config, clock)
        self.runner = CostRunner(clock=clock, sleep=clock.sleep)
        self.count: Counter[str] = Counter()
        self.deferrals: Counter[str] = Counter()
        self.batches: list[Batch] = []
        self.left_of_target: dict[str, int] = {}
        self.seen: set[str] = set()
        self.owed = 0

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> Sequence:
        seq = Sequence(request_id, prompt, max_tokens, arrival_ns=self.scheduler.clock())
        self.scheduler.add(seq)
        self.count["arrived"] += 1
        return seq

    def step(self) -> Batch:
        before = list(self.scheduler.waiting)
        batch = self.scheduler.schedule()
        self.check_decision(batch, before)
        self.recount(batch)
        tokens = self.runner.run(batch)
        finished = self.scheduler.update(batch, tokens)
        self.count["output"] += len(tokens)
        self.count["finished"] += len(finished)
        self.check_pool()
        return batch

    def run(self, limit: int = 5000) -> list[Batch]:
        """Step until nobody is left; a schedule that makes no progress fails here."""
        for _ in range(limit):
            if not self.scheduler.live:
                return self.batches
            self.step()
        raise AssertionError(f"{len(self.scheduler.live)} requests still live")

    def preempt(self, seq: Sequence) -> None:
        self.scheduler.preempt(seq)
        self.left(seq.request_id)
        self.count["preemptions"] += 1

    def end(self, seq: Sequence, reason: FinishReason) -> None:
        self.left(seq.request_id)
        if reason is FinishReason.ABORT:
            assert self.scheduler.abort(seq.request_id)
            self.count["aborted"] += 1
        else:
            self.scheduler.finish(seq, reason)
            self.count["failed"] += 1

    def left(self, request_id: str) -> None:
        """A request leaves the running list: what it had not prefilled is never paid."""
        self.owed -= self.left_of_target.pop(request_id, 0)

    def recount(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.count["iterations"] += 1
        self.count["member_steps"] += len(batch.members)
        for victim, _ in batch.preempted:
            self.left(victim.request_id)
            self.count["preemptions"] += 1
        for seq, start, tokens, _ in batch.members:
            if seq.request_id not in self.left_of_target:
                self.admitted(seq, start)
            prefill = min(tokens, self.left_of_target[seq.request_id])
            self.left_of_target[seq.request_id] -= prefill
            self.count["prefill"] += prefill
            self.count["decode"] += tokens - prefill
            self.count["recomputed"] += prefill if seq.num_preemptions else 0
        if batch.stop is not None:
            self.deferrals[batch.stop.value] += len(self.scheduler.waiting)

    def admitted(self, seq: Sequence, hit: int) -> None:
        missing = len(seq.prompt) + len(seq.output) - hit
        self.left_of_target[seq.request_id] = missing
        self.owed += missing
        if seq.request_id not in self.seen:
            self.seen.add(seq.request_id)
            self.count["cached"] += hit

    def check_decision(self, batch: Batch, before: list[Sequence]) -> None:
        scheduler, members = self.scheduler, batch.members
        assert sum(member.tokens for member in members) == batch.num_tokens
        assert 0 < batch.num_tokens <= (batch.budget or sys.maxsize)
        assert len(scheduler.running) + len(scheduler.held) <= self.config.max_num_seqs
        placed = [member.seq for member in members]
        if self.config.policy == "paged" and batch.num_prefill_tokens:
            assert batch.num_decode_tokens == 0, "prompts run alone"
            assert placed == scheduler.running[-len(placed) :]
        else:
            assert placed == scheduler.running
        assert all(member.tokens > 0 for member in members)
        assert all(member.tokens == 1 for member in members if not member.is_prefill)
        kinds = [member.is_prefill for member in members]
        assert kinds == sorted(kinds), "decodes come first"
        assert (batch.stop is None) == (not scheduler.waiting)
        assert batch.stop_head is (scheduler.waiting[0] if scheduler.waiting else None)
        victims = [victim for victim, _ in batch.preempted]
        admitted = [member.seq for member in members if member.seq in before]
        expected = victims[::-1] + before
        assert admitted + list(scheduler.waiting) == expected, "nobody overtakes the head"
        assert not (victims and admitted)

    def check_pool(self) -> None:
        blocks = self.scheduler.blocks
        holders = [*self.scheduler.running, *self.scheduler.held]
        held = {block for seq in holders for block in seq.block_table}
        assert blocks.used == len(held)
        assert blocks.used + blocks.evictable + blocks.free == blocks.total
        assert min(blocks.used, blocks.evictable, blocks.free) >= 0
        contents: dict[int, tuple[int, ...]] = {}
        size = self.config.block_size
        for seq in self.scheduler.running:
            for index, block in enumerate(seq.block_table):
                known = tuple((seq.prompt + seq.output)[: (index + 1) * size])
                assert contents.setdefault(block, known) == known, "two contents in one block"

    def check_totals(self) -> None:
        totals = self.scheduler.totals.as_dict()
        ends = sum(self.count[name] for name in ("finished", "aborted", "failed"))
        assert totals["requests"] == {
            "arrived": self.count["arrived"],
            "finished": self.count["finished"],
            "aborted": self.count["aborted"],
            "failed": self.count["failed"],
            "live": self.count["arrived"] - ends,
        }
        assert totals["requests"]["live"] == len(self.scheduler.running) + len(
            self.scheduler.waiting
        )
        for name, value in totals["tokens"].items():
            assert value == self.count[name], name
        for name in ("iterations", "member_steps", "preemptions"):
            assert totals[name] == self.count[name], name
        assert totals["deferrals"] == dict(self.deferrals)
        unpaid = sum(self.left_of_target.values())
        assert totals["tokens"]["prefill"] == self.owed - unpaid


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(scope="session")
def audited() -> type[Audited]:
    """The class, so that a test gives its own configuration."""
    return Audited
