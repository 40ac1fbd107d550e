"""The store thread: takes one offer at a time and commits it, until it holds.

A commit takes 20 ms, 54 beside a heavy query: too long for the thread that reads the rings.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache

from batchscope.exporter.errors import StoreError
from batchscope.exporter.offers import Offer
from batchscope.exporter.retention import Bounds, retain
from batchscope.exporter.store import Commit, Store
from batchscope.exporter.views import Key

log = logging.getLogger(__name__)

RETAIN_S = 60.0
RETRY_S = 1.0


class StoreThread:
    """Commits offers. The tail thread reads `in_flight` and calls `offer`; the rest is for any."""

    def __init__(
        self, store: Store, *, bounds: Bounds, faults: Counter[str], wall: Callable[[], int]
    ) -> None:
        self.error: str | None = None
        self.in_flight = 0
        self._store, self._bounds, self._faults, self._wall = store, bounds, faults, wall
        self._counts: Counter[Key] = Counter()
        self._store_bytes = 0
        self._changed = threading.Condition()
        self._waiting: Offer | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def offer(self, made: Offer) -> None:
        """Hand over what to commit next; only when nothing is in flight."""
        with self._changed:
            self._waiting, self.in_flight = made, max(1, made.nbytes)
            self._changed.notify_all()

    def wait_until_free(self, timeout_s: float) -> None:
        """Wait for the commit in flight, not for ever."""
        with self._changed:
            self._changed.wait_for(lambda: not self.in_flight, timeout=timeout_s)

    def close(self, timeout_s: float) -> None:
        """Commit what was handed over and end; a store that can't write is tried once more."""
        self._ended.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def values(self) -> dict[Key, int]:
        """Its part of the exporter's own figures."""
        up, size = int(self.error is None), self._store_bytes
        return {("store_up", ()): up, ("store_bytes", ()): size, **self._counts}

    def _run(self) -> None:
        next_retain = time.monotonic() + RETAIN_S
        while (made := self._next()) is not None:
            if self._persist(made) and time.monotonic() >= next_retain:
                self._retain()
                next_retain = time.monotonic() + RETAIN_S

    def _next(self) -> Offer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended.is_set())
            made, self._waiting = self._waiting, None
            return made

    def _persist(self, made: Offer) -> bool:
        """Commit until it holds; gives up only when the exporter ends."""
        commit = cache(made.commit)
        while not self._try(commit):
            if self._ended.wait(RETRY_S) and not self._try(commit):
                return False
        made.settle()
        for table, rows in commit().appended.items():
            self._counts["stored_rows", (table,)] += rows.num_rows
        with self._changed:
            self.in_flight = 0
            self._changed.notify_all()
        return True

    def _try(self, commit: Callable[[], Commit]) -> bool:
        started = time.monotonic_ns()
        try:
            self._store.commit(commit())
            self._store_bytes = self._store.used_bytes()
        except Exception as error:  # noqa: BLE001 (StoreError, or rows that don't fit: seen, kept)
            self._say_down(error)
            return False
        if self.error:
            log.warning("the store takes rows again")
        self.error = None
        self._counts["store_commits", ()] += 1
        self._counts["store_commit_seconds", ()] += time.monotonic_ns() - started
        return True

    def _say_down(self, error: Exception) -> None:
        why = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        if self.error is None:
            log.error("%s; rows are kept and tried again every %g s", why, RETRY_S)
        self.error = why
        self._faults["store"] += 1

    def _retain(self) -> None:
        try:
            retain(self._store, self._bounds, now_unix_ns=self._wall())
        except StoreError as error:
            self._say_down(error)
