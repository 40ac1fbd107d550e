"""The engine: requests in from any thread, one loop thread that steps.

step() is schedule, run, update; everything else here is the door to it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.limits import RequestRejected, check_request
from batchscope.engine.runner import Runner
from batchscope.engine.scheduler import Scheduler
from batchscope.engine.sequence import FinishReason, Sequence
from batchscope.engine.totals import Totals

STUCK_WAIT_S = 0.05
"""Longest pause of a decision that could place nobody: then it is made again."""


def make_runner(config: EngineConfig, clock: Callable[[], int]) -> Runner:
    """The runner that `config` names; torch is imported only for its own."""
    if config.runner == "cost":
        return CostRunner(vocab_size=config.model.vocab_size, clock=clock)
    from batchscope.engine.torch_runner import TorchRunner

    runner = TorchRunner(config)
    runner.prepare()
    return runner


class Engine:
    """A scheduler, a runner, and an inbox that makes submit(), abort() and post() safe from any
    thread.

    All other methods belong to the thread that steps. `clock` returns nanoseconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        runner: Runner | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.config = config
        self.clock = clock
        self.scheduler = Scheduler(config, clock)
        self.runner = make_runner(config, clock) if runner is None else runner
        self._inbox: deque[Callable[[], object]] = deque()
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._mail = threading.Event()

    @property
    def totals(self) -> Totals:
        """The engine's own counters."""
        return self.scheduler.totals

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        priority: int = 0,
        ignore_eos: bool = True,
        tenant: str | None = None,
        trace_context: tuple[bytes, bytes] | None = None,
        on_token: Callable[[int], None] | None = None,
        on_end: Callable[[FinishReason], None] | None = None,
        generated: list[int] | None = None,
        keeps_kv: bool = False,
    ) -> Sequence:
        """Hand in a request; it arrives at the start of the next step. Any thread.

        With `generated`, tokens that a prefill engine made of it, comes the KV of all but the last.
        The other options are Sequence's.

        Raises RequestRejected when it could never run or its id is in use.
        """
        seq = Sequence(
            request_id,
            prompt,
            max_tokens,
            priority=priority,
            arrival_ns=self.clock(),
            ignore_eos=ignore_eos,
            tenant=tenant,
            trace_context=trace_context,
            on_token=on_token,
            on_end=on_end,
            given=len(generated or ()),
            keeps_kv=keeps_kv,
        )
        seq.output.extend(generated or ())
        check_request(self.config, seq)
        self._claim(seq)
        self.post(partial(self._arrive, seq))
        return seq

    def abort(self, request_id: str) -> None:
        """Ask for a request's end; it takes effect at the start of the next step. Any thread."""
        self.post(lambda: self.scheduler.abort(request_id))

    def post(self, action: Callable[[], object]) -> None:
        """Have the thread that steps call `action` at the start of its next step. Any thread."""
        self._inbox.append(action)
        self.wake()

    def wake(self) -> None:
        """End a wait_for_work() now. Any thread."""
        self._mail.set()

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._inbox or self.scheduler.live)

    def wait_for_work(self, timeout_s: float) -> bool:
        """Sleep until a request or an abort comes in, at most `timeout_s`; has_work() after it."""
        if not self.has_work():
            self._mail.wait(timeout_s)
        return self.has_work()

    def step(self) -> list[Sequence]:
        """One iteration; the requests that finished by it. Without work there is no iteration."""
        self._drain()
        if not self.scheduler.live:
            return []
        batch = self.scheduler.schedule()
        tokens = self._run(batch)
        return self.scheduler.update(batch, tokens)

    def _claim(self, seq: Sequence) -> None:
        scheduler, own = self.scheduler, seq.request_id
        with self._lock:
            if own in self._queued or own in scheduler.live or own in scheduler.kept:
                raise RequestRejected(f"{own}: this id is in use")
            self._queued.add(own)

    def _arrive(self, seq: Sequence) -> None:
        self.scheduler.add(seq)
        self._queued.discard(seq.request_id)

    def _drain(self) -> None:
        self._mail.clear()
        while self._inbox:
            self._inbox.popleft()()

    def _run(self, batch: Batch) -> dict[str, int]:
        """Run the batch; when the runner fails, so do its members, and the rest can go on.

        Where nobody could be placed whoever waits does so for pages that another engine is to take,
        unless a place was lost just now.
        """
        if not batch.members:
            self._mail.wait(0 if batch.preempted else STUCK_WAIT_S)
            return {}
        try:
            return self.runner.run(batch)
        except Exception:
            for member in batch.members:
                self.scheduler.finish(member.seq, FinishReason.ERROR)
            raise
