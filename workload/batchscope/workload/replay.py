"""A trace offered to a server, open loop: requests go out when the trace says, whatever comes back.

A client that waits for answers before it sends slows down with the server and hides its queue. Here
the number under way only has a safety cap: beyond it requests are counted as never sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from batchscope.workload.client import ask
from batchscope.workload.driver import OpenLoop
from batchscope.workload.orders import Ahead, Order
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.trace import Arrival, Trace
from batchscope.workload.wire import Wire

LEAD_S = 0.2
"""From the last preparation to the start of the trace."""
GLANCE_S = 0.1
"""How soon an interrupt is seen."""
SPARE_SHARE = 3
"""An order is spelled while nothing is due for this many times as long as the one before took."""


@dataclass
class Played:
    """A replay under way or over. Instants are of the client's monotonic clock.

    outcomes: of all that came due, in order of arrival. ended: how many ended how so far.
    most_under_way: at once, of `cap` that may. interrupted: not all of the trace was offered.
    """

    start_ns: int
    cap: int | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    ended: Counter[Status] = field(default_factory=Counter)
    under_way: int = 0
    most_under_way: int = 0
    interrupted: bool = False

    @property
    def end_ns(self) -> int:
        """The last end; the start when nothing has ended."""
        ends = (one.ended_ns for one in self.outcomes)
        return max((end for end in ends if end is not None), default=self.start_ns)


class Replay:
    """One replay of a trace; `run` once. `most` caps the requests under way; `heard` is told of
    each end, on the loop that also stamps tokens: it must be quick.
    """

    def __init__(
        self,
        trace: Trace,
        wire: Wire,
        order: Callable[[Arrival], Order],
        *,
        most: int = 4096,
        timeout_s: float = 600.0,
        heard: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._trace, self._wire = trace, wire
        self._most, self._timeout_s, self._heard = most, timeout_s, heard
        self._ahead = Ahead(trace, order)
        self._spell_ns = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopped = asyncio.Event()
        self.played = Played(0, cap=most)

    def stop(self) -> None:
        """Send no more and end what is under way."""
        self.played.interrupted = True
        self._stopped.set()

    async def run(self) -> Played:
        """Until every request has ended."""
        self._ahead.fill()
        clock, played = self._wire.clock, self.played
        played.start_ns = clock() + int(LEAD_S * 1e9)
        loop = OpenLoop(self._trace, start_ns=played.start_ns)
        while not self._over(loop):
            await self._rest(loop.next_ns())
            for arrival in loop.due(clock()):
                self._send(arrival)
            for arrival in loop.cancelled(clock()):
                self._leave(arrival)
        await self._end()
        return played

    def _over(self, loop: OpenLoop) -> bool:
        return self._stopped.is_set() or (loop.exhausted and not self._tasks)

    async def _rest(self, until_ns: int | None) -> None:
        """Sleep to the next instant, or for a glance; spell an order first where there is time."""
        clock = self._wire.clock
        began_ns = clock()
        left_ns = int(GLANCE_S * 1e9) if until_ns is None else until_ns - began_ns
        if left_ns > SPARE_SHARE * self._spell_ns and self._ahead.make_one():
            self._spell_ns = clock() - began_ns
            left_ns -= self._spell_ns
        await asyncio.sleep(max(0.0, min(left_ns / 1e9, GLANCE_S)))

    def _send(self, arrival: Arrival) -> None:
        order, played = self._ahead.take(), self.played
        outcome = Outcome(arrival, order.request_id, arrival.at_ns)
        played.outcomes.append(outcome)
        if len(self._tasks) >= self._most:
            outcome.why = f"{self._most} requests were under way"
            played.ended[outcome.status] += 1
            return
        asking = ask(self._wire, order, outcome, timeout_s=self._timeout_s)
        task = self._tasks[arrival.ordinal] = asyncio.create_task(asking)
        task.add_done_callback(lambda _: self._ended(outcome))
        played.under_way = len(self._tasks)
        played.most_under_way = max(played.most_under_way, played.under_way)

    def _ended(self, outcome: Outcome) -> None:
        del self._tasks[outcome.arrival.ordinal]
        if outcome.sent_ns is None:  # its client left before its task had begun
            outcome.status = Status.CUT if outcome.cut else Status.LEFT
            outcome.ended_ns = self._wire.clock()
        self.played.under_way = len(self._tasks)
        self.played.ended[outcome.status] += 1
        if self._heard is not None:
            self._heard(outcome)

    def _leave(self, arrival: Arrival) -> None:
        task = self._tasks.get(arrival.ordinal)
        if task is not None:
            task.cancel()

    async def _end(self) -> None:
        """Whoever is still under way was cut off by us."""
        for ordinal, task in self._tasks.items():
            self.played.outcomes[ordinal].cut = True
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._wire.close()
