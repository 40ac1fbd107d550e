"""Schedules without a token, told together: an engine that spins would fill the ring with them."""

from __future__ import annotations

from batchscope.schemas.records import EMPTY

EVERY_NS = 100_000_000


class Empties:
    """Zero-token schedules since the last EMPTY: when the first began, their time, how many."""

    def __init__(self) -> None:
        self._first_ns = self._schedule_ns = self._schedules = 0

    def count(self, *, at_ns: int, schedule_ns: int) -> bool:
        """Take one in that returned at `at_ns`; True when it is time to tell them."""
        if not self._schedules:
            self._first_ns = at_ns - schedule_ns
        self._schedule_ns += schedule_ns
        self._schedules += 1
        return at_ns - self._first_ns >= EVERY_NS

    def record(self, *, at_ns: int) -> bytes:
        """The body of EMPTY, and begin anew."""
        told = (at_ns, self._first_ns, self._schedule_ns, self._schedules)
        self._first_ns = self._schedule_ns = self._schedules = 0
        return EMPTY.struct.pack(EMPTY.kind, 0, *told)
