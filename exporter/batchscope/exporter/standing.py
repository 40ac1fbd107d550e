"""Deferrals that go on while no decision comes: an engine that is wedged defers all who wait.

The fold counts up to the latest decision, so that it says the same of the same records. A scrape
must not see these seconds stand still just when they matter; tail thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Key = tuple[str, tuple[str, ...]]


class Standing:
    """`deferred_seconds` of one ring as shown: counted, and what stands since. It never falls."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._decisions, self._since = -1, 0
        self._most: dict[Key, int] = {}

    def shown(
        self, counted: Mapping[Key, int], left_out: Mapping[str, int], *, decisions: int, live: bool
    ) -> dict[Key, int]:
        """Counters to show, ns. left_out: requests that the newest of so many decisions left out.

        Since that decision was read, on our own clock: later than it was made, so never too much.
        """
        now = self._clock()
        if decisions != self._decisions:
            self._decisions, self._since = decisions, now
        elapsed = now - self._since if live else 0
        for reason, requests in left_out.items():
            key = ("deferred_seconds", (reason,))
            standing = counted.get(key, 0) + requests * elapsed
            self._most[key] = max(self._most.get(key, 0), standing)
        return {key: max(counted.get(key, 0), most) for key, most in self._most.items()}
