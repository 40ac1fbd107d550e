"""Open loop: arrivals come when the trace says, however far behind the engine is.

A closed loop (next request when one is done) slows down with the engine and hides its queue. The
engine's own loop polls this between steps: `for arrival in loop.due(now): engine.submit(...)`.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from batchscope.workload.trace import Arrival, Trace, TraceError

#: Handovers whose lateness is remembered.
LATENESS_REQUESTS = 10_000


@dataclass(frozen=True)
class Lateness:
    """How long after its instant an arrival was handed over: what the poller's pace adds to every
    figure measured from arrival. Mean and max over all, quantiles over the newest 10,000; None
    before the first handover.
    """

    requests: int
    mean_ns: float | None
    max_ns: int | None
    p50_ns: int | None
    p99_ns: int | None


class OpenLoop:
    """Hands out a trace's arrivals and cancellations by the clock of the caller.

    `start_ns` is the caller's clock at the start of the trace. After the last arrival the trace
    begins anew until `laps` are done (None: for ever), one mean gap later, its ordinals going on,
    so that own tokens differ and shared blocks come back. Not for use by two threads.
    """

    def __init__(self, trace: Trace, *, start_ns: int, laps: int | None = 1) -> None:
        if not len(trace):
            raise TraceError("the trace has no arrival to offer")
        self._trace, self._start_ns, self._laps = trace, start_ns, laps
        self._lap_ns = trace.lap_ns
        self._handed = 0
        self._leaving: list[tuple[int, int, Arrival]] = []
        self._late_sum_ns = self._late_max_ns = 0
        self._late: deque[int] = deque(maxlen=LATENESS_REQUESTS)

    @property
    def exhausted(self) -> bool:
        """All arrivals are handed over."""
        return self._laps is not None and self._handed >= self._laps * len(self._trace)

    @property
    def done(self) -> bool:
        """All arrivals are handed over and no client is still going to vanish."""
        return self.exhausted and not self._leaving

    def next_ns(self) -> int | None:
        """When the next arrival or cancellation is due, on the caller's clock; None when done."""
        instants = [self._leaving[0][0]] if self._leaving else []
        if not self.exhausted:
            instants.append(self._instant_ns(self._handed))
        return min(instants, default=None)

    def due(self, now_ns: int) -> list[Arrival]:
        """Arrivals whose instant has come and that were not handed over yet, in order. Their
        `at_ns` is on the caller's clock.
        """
        arrivals = []
        while not self.exhausted and self._instant_ns(self._handed) <= now_ns:
            arrivals.append(self._hand(now_ns))
        return arrivals

    def cancelled(self, now_ns: int) -> list[Arrival]:
        """Arrivals handed over whose client has vanished by now, each once, whether the engine
        has answered or not: cancelling a finished request is nothing.
        """
        gone = []
        while self._leaving and self._leaving[0][0] <= now_ns:
            gone.append(heapq.heappop(self._leaving)[2])
        return gone

    def lateness(self) -> Lateness:
        """Of the handovers so far."""
        if not self._late:
            return Lateness(0, None, None, None, None)
        p50, p99 = np.quantile(np.array(self._late), [0.5, 0.99], method="inverted_cdf").tolist()
        mean = self._late_sum_ns / self._handed
        return Lateness(self._handed, mean, self._late_max_ns, p50, p99)

    def _instant_ns(self, ordinal: int) -> int:
        lap, row = divmod(ordinal, len(self._trace))
        return self._start_ns + lap * self._lap_ns + int(self._trace.at_ns[row])

    def _hand(self, now_ns: int) -> Arrival:
        at_ns = self._instant_ns(self._handed)
        row = self._trace[self._handed % len(self._trace)]
        arrival = row._replace(ordinal=self._handed, at_ns=at_ns)
        self._handed += 1
        self._late.append(now_ns - at_ns)
        self._late_sum_ns += now_ns - at_ns
        self._late_max_ns = max(self._late_max_ns, now_ns - at_ns)
        if arrival.abort_after_ns is not None:
            leaves_ns = at_ns + arrival.abort_after_ns
            heapq.heappush(self._leaving, (leaves_ns, arrival.ordinal, arrival))
        return arrival
