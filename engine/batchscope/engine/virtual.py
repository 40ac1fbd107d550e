"""Virtual time: hours of traffic through the real scheduler in seconds, on a clock that only work
moves. Used by tests, benches and what-if questions; the runner is the cost model's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100, CostRunner, CostTable
from batchscope.engine.engine import Engine
from batchscope.engine.sequence import Sequence


class VirtualClock:
    """Nanoseconds that pass only while somebody sleeps: call it to read it."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        """The time, in ns."""
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        """Let that time pass at once."""
        self.now_ns += round(seconds * 1e9)

    def until(self, at_ns: int) -> None:
        """Let the time until `at_ns` pass; the past stays where it is."""
        self.now_ns = max(self.now_ns, at_ns)


class Arriving(Protocol):
    """What a simulation reads of an arrival: a row of any trace has it.

    `at_ns` counts from the start; `abort_after_ns` from the arrival, None for a patient client.
    """

    @property
    def ordinal(self) -> int:
        """Number of the request, its id."""

    @property
    def at_ns(self) -> int:
        """When it comes."""

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""

    @property
    def output_tokens(self) -> int:
        """How many tokens it will generate."""

    @property
    def abort_after_ns(self) -> int | None:
        """When its client vanishes."""


class Step(NamedTuple):
    """One iteration. `kv_blocks` were in use after it, holding `kv_tokens` of `requests` running
    ones (and of those that ended but keep their slot); `waiting` were left out of it.
    """

    began_ns: int
    ended_ns: int
    members: int
    prefill_tokens: int
    decode_tokens: int
    requests: int
    waiting: int
    kv_blocks: int
    kv_tokens: int


@dataclass(slots=True)
class Served:
    """A request and the instants at which its tokens came out."""

    seq: Sequence
    token_ns: list[int] = field(default_factory=list)

    @property
    def ttft_ns(self) -> int | None:
        """Arrival to first token; None when none came."""
        return self.token_ns[0] - self.seq.arrival_ns if self.token_ns else None

    @property
    def gaps_ns(self) -> list[int]:
        """Times between tokens."""
        return [b - a for a, b in zip(self.token_ns, self.token_ns[1:], strict=False)]


class Simulation:
    """An engine on a virtual clock and what came out of it: `served` in order of arrival, `steps`.

    The engine is complete before anything runs, so an observer can be attached to it; `clock` is
    what that observer must read. `start_ns` is the clock's first reading.
    """

    def __init__(
        self, config: EngineConfig, *, table: CostTable = SEVEN_B_A100, start_ns: int = 0
    ) -> None:
        self.clock = VirtualClock(start_ns)
        cost = CostRunner(
            table, vocab_size=config.model.vocab_size, clock=self.clock, sleep=self.clock.sleep
        )
        self._runner = _Keeping(cost)
        self.engine = Engine(config, runner=self._runner, clock=self.clock)
        self.served: list[Served] = []
        self.steps: list[Step] = []
        self._start_ns = start_ns
        self._leaving: list[tuple[int, str]] = []

    def run(
        self,
        arrivals: Iterable[Arriving],
        *,
        prompt: Callable[[Arriving], list[int]] | None = None,
        generated: Callable[[Arriving], list[int]] | None = None,
        after_step: Callable[[int], None] | None = None,
        until_ns: int | None = None,
    ) -> Simulation:
        """Serve all arrivals (in time order), open loop; until the last has ended, or to `until_ns`
        on the virtual clock. `prompt` makes the token ids (else no two requests share any);
        `generated` gives the tokens that a prefill engine has made of each, KV included;
        `after_step` hears the number of steps so far. Raises RequestRejected for what can't run.
        """
        coming = deque(arrivals)
        while coming or self.engine.has_work():
            if until_ns is not None and self.clock.now_ns >= until_ns:
                break
            self._due(coming, prompt or _own_tokens, generated or _none)
            if self.engine.has_work():
                self._step()
                if after_step is not None:
                    after_step(len(self.steps))
        return self

    def _due(self, coming: deque[Arriving], *tokens: Callable[[Arriving], list[int]]) -> None:
        """Submit who has come and abort who has left; an idle engine skips to the next arrival."""
        if coming and not self.engine.has_work():
            self.clock.until(self._start_ns + coming[0].at_ns)
        now = self.clock.now_ns
        while coming and self._start_ns + coming[0].at_ns <= now:
            self._submit(coming.popleft(), *tokens)
        while self._leaving and self._leaving[0][0] <= now:
            self.engine.abort(heappop(self._leaving)[1])

    def _submit(
        self,
        arrival: Arriving,
        prompt: Callable[[Arriving], list[int]],
        generated: Callable[[Arriving], list[int]],
    ) -> None:
        times: list[int] = []
        clock = self.clock

        def on_token(_token: int) -> None:
            times.append(clock.now_ns)

        name = f"r{arrival.ordinal}"
        seq = self.engine.submit(
            name,
            prompt(arrival),
            arrival.output_tokens,
            on_token=on_token,
            generated=generated(arrival),
        )
        # it came while an iteration ran: the engine sees it now, its client has waited since
        seq.arrival_ns = self._start_ns + arrival.at_ns
        self.served.append(Served(seq, times))
        if arrival.abort_after_ns is not None:
            heappush(self._leaving, (seq.arrival_ns + arrival.abort_after_ns, name))

    def _step(self) -> None:
        began, scheduler, self._runner.batch = self.clock.now_ns, self.engine.scheduler, None
        self.engine.step()
        batch = self._runner.batch
        if batch is None:  # there were only aborts to take note of
            return
        holders = [*scheduler.running, *scheduler.held]
        self.steps.append(
            Step(
                began,
                self.clock.now_ns,
                len(batch.members),
                batch.num_prefill_tokens,
                batch.num_decode_tokens,
                len(holders),
                len(scheduler.waiting),
                scheduler.blocks.used,
                sum([seq.num_computed for seq in holders]),
            )
        )


class _Keeping:
    """A runner that remembers the last batch."""

    def __init__(self, cost: CostRunner) -> None:
        self._cost = cost
        self.batch: Batch | None = None

    def run(self, batch: Batch) -> dict[str, int]:
        """As the cost runner."""
        self.batch = batch
        return self._cost.run(batch)


def _own_tokens(arrival: Arriving) -> list[int]:
    """A prompt that shares no block with another's."""
    return [arrival.ordinal] * arrival.prompt_tokens


def _none(_arrival: Arriving) -> list[int]:
    """No other engine has seen it."""
    return []
