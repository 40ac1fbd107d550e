"""What our hooks may cost: a share of the interval, by a moving mean. Asked once per iteration by boot."""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.01
WINDOW = 256
"""Iterations in the moving mean, and before the first judgement: one slow step proves nothing."""
LARGEST_SAMPLE = 8
"""A sample counts for at most so many means: a hook that was descheduled for 4 ms did not work for 4 ms."""


class Budget:
    """Moving means of our cost and of the interval, in ns. A share of 0 means no limit."""

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.cost_ns = self.interval_ns = 0.0
        self._seen = 0

    def restart(self) -> None:
        """Begin anew: what is measured has changed."""
        self.cost_ns = self.interval_ns = 0.0
        self._seen = 0

    def exceeded(self, cost_ns: int, interval_ns: int) -> bool:
        """Take one iteration in; True when our share of the interval is above the limit."""
        self._seen += 1
        weight = 1 / min(self._seen, WINDOW)
        most = LARGEST_SAMPLE * self.cost_ns if self._seen > WINDOW else cost_ns
        self.cost_ns += weight * (min(cost_ns, most) - self.cost_ns)
        self.interval_ns += weight * (interval_ns - self.interval_ns)
        limit = self.share * self.interval_ns
        return self._seen > WINDOW and 0 < limit < self.cost_ns


def budget_from(env: Mapping[str, str]) -> Budget:
    """The share that BATCHSCOPE_OVERHEAD names (0.01 is one percent, 0 no limit)."""
    try:
        return Budget(max(0.0, float(env.get("BATCHSCOPE_OVERHEAD", SHARE))))
    except ValueError:
        return Budget()
