"""What the adapter remembers between two calls of one scheduler: ids and counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from batchscope.adapters.facts import Progress
from batchscope.adapters.vllm.requests import prefill_end
from batchscope.adapters.vllm.shape import Shape
from batchscope.adapters.vllm.transfers import Transfers
from batchscope.adapters.vllm.turns import Turn

IN_FLIGHT = 64
RESTS = "WAITING_FOR_STREAMING_REQ"
"""Status of a session that has answered its last input."""
MOST_PAST = 1024

NO_STEP: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Now:
    """Tokens by request of the decision that is being recorded; empty in between."""

    in_step: Mapping[str, int] = field(default_factory=lambda: NO_STEP)


@dataclass(slots=True)
class View:
    """One scheduler and what must be known of its past.

    `prefilling` maps requests that still compute known tokens to how many those are, `away` holds
    the preempted, `passed` the skipped ones with their reason (0: it has ended), `queued_ns` how
    long requests waited by vLLM's own clock until their first admission, `partial` by
    id(batch) the members that can't emit; `held_back` says that prefills may be throttled,
    `preempted` that the last decision preempted somebody, `length` counts a queue. Of
    sessions `stopped` has status and tokens of the last answer, `resting` who waits for its client,
    `fed` whose next input is there, `past` the turn that batches in flight mean.
    """

    scheduler: Any
    shape: Shape
    now: Now
    blocks: Any
    transfers: Transfers
    prefilling: dict[str, int] = field(default_factory=dict)
    away: dict[str, None] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    queued_ns: dict[str, int] = field(default_factory=dict)
    partial: dict[int, list[str]] = field(default_factory=dict)
    length: Callable[[Any], int] = len
    held_back: bool = False
    preempting: bool = False
    preempted: bool = False
    errors: int = 0
    victim: Progress | None = None
    turns: int = 0
    stopped: tuple[str, int] = ("", 0)
    fed: list[Any] = field(default_factory=list)
    resting: set[str] = field(default_factory=set)
    past: dict[str, Turn] = field(default_factory=dict)

    def look(self) -> None:
        """Begin with requests that were here before us: which are inside their prompt."""
        self.prefilling.clear()
        for request in self.scheduler.requests.values():
            status = request.status.name
            if status == "PREEMPTED":
                self.away[request.request_id] = None
            elif status == RESTS:
                self.resting.add(request.request_id)
            elif status == "RUNNING":
                done = request.num_computed_tokens - self.now.in_step.get(request.request_id, 0)
                if done < prefill_end(request):
                    self.prefilling[request.request_id] = request.num_tokens

    def waiting(self) -> int:
        """Requests that wait, but for sessions that wait for their client."""
        scheduler, shape = self.scheduler, self.shape
        found = self.length(scheduler.waiting)
        if shape.holding:
            found += self.length(getattr(scheduler, shape.holding))
        if found and shape.sessions:
            found = max(0, found - scheduler.num_waiting_for_streaming_input)
        return found

    def cannot_emit(self, batch: object, members: list[str]) -> None:
        """Keep who computes a part of its prompt only, until the batch comes back."""
        if members:
            self.partial[id(batch)] = members
            if len(self.partial) > IN_FLIGHT:
                del self.partial[next(iter(self.partial))]

    def turn(self, session: Any) -> Turn:
        """A session has answered: what batches in flight still say of it is of this turn."""
        self.turns += 1
        turn = Turn(session, self.turns)
        self.resting.add(session.request_id)
        self.past[session.request_id] = turn
        if len(self.past) > MOST_PAST:
            del self.past[next(iter(self.past))]
        return turn

    def forget(self, request_id: str) -> None:
        """It has left."""
        self.prefilling.pop(request_id, None)
        self.away.pop(request_id, None)
        self.passed.pop(request_id, None)
        self.queued_ns.pop(request_id, None)


def view_of(scheduler: Any, shape: Shape, now: Now) -> View:
    """A view that has looked at who is there."""
    view = View(scheduler, shape, now, scheduler.kv_cache_manager.block_pool, Transfers(shape))
    if isinstance(scheduler.waiting, deque):
        view.length = deque.__len__  # vLLM overrides it in Python: three times as long
    view.look()
    return view
