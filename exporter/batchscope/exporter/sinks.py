"""Sinks see folded rows on threads of their own: a slow or broken one costs a counter, no more."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from batchscope.exporter.pending import Rows

log = logging.getLogger(__name__)

QUEUE_LENGTH = 256
"""Chunks of rows that wait for one sink; a chunk is at most what one poll of a ring returns."""


class Observed(Protocol):
    """The ring that rows came from."""

    @property
    def ring_id(self) -> int:
        """Key of the ring."""
        ...

    @property
    def hello(self) -> dict[str, Any]:
        """What the adapter said at attach."""
        ...


class Sink(Protocol):
    """Something that wants folded rows."""

    def rows(self, ring: Observed, rows: Rows) -> None:
        """Take the final rows of one chunk."""

    def values(self) -> Mapping[tuple[str, tuple[str, ...]], int]:
        """Its own counters, by catalogue name and label values."""
        ...

    def close(self) -> None:
        """Send what is left, in bounded time."""


class SinkThread:
    """Feeds one sink from a bounded queue; what doesn't fit, and each fault, is counted by name."""

    def __init__(self, name: str, sink: Sink, faults: Counter[str]) -> None:
        self.name, self.sink, self._faults = name, sink, faults
        self._queue: queue.Queue[tuple[Observed, Rows] | None] = queue.Queue(QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def put(self, ring: Observed, rows: Rows) -> None:
        """Hand rows over without waiting."""
        try:
            self._queue.put_nowait((ring, rows))
        except queue.Full:
            self._faults[self.name] += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Let it finish what it has, but not for longer than this."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._feed(*item)
        try:
            self.sink.close()
        except Exception:  # noqa: BLE001 (isolated: any fault is the sink's own)
            self._fault()

    def _feed(self, ring: Observed, rows: Rows) -> None:
        try:
            self.sink.rows(ring, rows)
        except Exception:  # noqa: BLE001 (isolated: any fault is the sink's own)
            self._fault()

    def _fault(self) -> None:
        self._faults[self.name] += 1
        if self._faults[self.name] == 1:
            log.exception("sink %s failed; further faults are only counted", self.name)
