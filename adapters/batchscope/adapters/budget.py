"""What our hooks may cost: a share of the interval. Asked once per iteration by attachment."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.01
WINDOW = 64
"""Iterations that are weighed between two judgements."""


class Budget:
    """Sums of our cost and of the interval over a window, in ns. A share of 0 means no limit.

    Over budget means a mean above the limit in a window of which most iterations were above it.
    Where cores are shared, hooks that are descheduled for some ms now and then raise the mean (to
    93 us where the median is 30), and detaching would not give that time back.
    """

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.found = 0.0
        """Our share of the interval over the last full window."""
        self.restart()

    def restart(self) -> None:
        """Begin a window: what is measured has changed, or it was full."""
        self._cost_ns = self._interval_ns = self._seen = self._above = 0

    def exceeded(self, cost_ns: int, interval_ns: int) -> bool:
        """Take one iteration in; True when a window is full and we were over budget in it."""
        self._cost_ns += cost_ns
        self._interval_ns += interval_ns
        self._above += cost_ns > self.share * interval_ns
        self._seen += 1
        return self._seen >= WINDOW and self._judge()

    def _judge(self) -> bool:
        self.found = self._cost_ns / max(1, self._interval_ns)
        mostly = 2 * self._above > self._seen
        self.restart()
        return mostly and 0 < self.share < self.found


def budget_from(env: Mapping[str, str]) -> Budget:
    """The share that BATCHSCOPE_OVERHEAD names (0.01 is one percent, 0 no limit)."""
    try:
        return Budget(max(0.0, float(env.get("BATCHSCOPE_OVERHEAD", SHARE))))
    except ValueError:
        return Budget()
