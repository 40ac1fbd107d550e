"""What our hooks may cost: a share of the interval. Asked once per iteration by attachment."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.01
WINDOW = 512
"""Iterations of one mean: a hook that was descheduled for 4 ms once adds 8 us to it, not 4 ms."""


class Budget:
    """Sums of our cost and of the interval over a window, in ns. A share of 0 means no limit."""

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.found = 0.0
        """Our share of the interval over the last full window."""
        self.restart()

    def restart(self) -> None:
        """Begin a window: what is measured has changed, or it was full."""
        self._cost_ns = self._interval_ns = self._seen = 0

    def exceeded(self, cost_ns: int, interval_ns: int) -> bool:
        """Take one iteration in; True when a window is full and our share of it above the limit."""
        self._cost_ns += cost_ns
        self._interval_ns += interval_ns
        self._seen += 1
        return self._seen >= WINDOW and self._judge()

    def _judge(self) -> bool:
        self.found = self._cost_ns / max(1, self._interval_ns)
        self.restart()
        return 0 < self.share < self.found


def budget_from(env: Mapping[str, str]) -> Budget:
    """The share that BATCHSCOPE_OVERHEAD names (0.01 is one percent, 0 no limit)."""
    try:
        return Budget(max(0.0, float(env.get("BATCHSCOPE_OVERHEAD", SHARE))))
    except ValueError:
        return Budget()
