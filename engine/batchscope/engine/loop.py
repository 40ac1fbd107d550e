"""The thread that steps an engine while others submit: used by the server.

Submitters hear their tokens and their end by callbacks, on the engine's thread unless told.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from batchscope.engine.engine import Engine
from batchscope.engine.limits import RequestRejected
from batchscope.engine.sequence import FinishReason

IDLE_WAIT_S = 0.2
OnEnd = Callable[[FinishReason], None]


class Overloaded(RuntimeError):  # noqa: N818  (what is the case, in the words of a client)
    """As many requests wait as may: try again later."""


class Stopped(RuntimeError):  # noqa: N818
    """The engine takes no more requests."""


class EngineLoop:
    """Steps `engine` from start() to stop(). `max_waiting` bounds the requests that don't run yet.

    All public methods may be called from any thread but the engine's own.
    """

    def __init__(self, engine: Engine, *, max_waiting: int = 256) -> None:
        self.engine = engine
        self._max_waiting = max_waiting
        self._live: dict[str, OnEnd] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._stop.is_set()

    @property
    def waiting(self) -> int:
        """Requests that were taken and don't run yet."""
        return max(0, len(self._live) - len(self.engine.scheduler.running))

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Take no more, end every request as aborted, wait for the thread. Safe to repeat."""
        self._stop.set()
        self.engine.wake()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        on_token: Callable[[int], None],
        on_end: OnEnd,
        **options: Any,
    ) -> None:
        """Engine.submit, and `on_end` after the last token. Raises RequestRejected, Overloaded or
        Stopped.
        """
        with self._lock:
            if not self.alive:
                raise Stopped("the engine takes no requests: it is ending, or lacks its other half")
            if self.waiting >= self._max_waiting:
                raise Overloaded(f"{self.waiting} requests are waiting")
            if request_id in self._live:
                raise RequestRejected(f"{request_id}: this id is in use")
            self._live[request_id] = on_end  # before it can end
            try:
                self._hand_in(request_id, prompt, max_tokens, on_token, **options)
            except RequestRejected:
                del self._live[request_id]
                raise

    def abort(self, request_id: str) -> None:
        """End a request whose client has gone; `on_end` is not called. Unknown ids are ignored."""
        with self._lock:
            known = self._live.pop(request_id, None)
        if known is not None:
            self._give_up(request_id)

    def _hand_in(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        on_token: Callable[[int], None],
        **options: Any,
    ) -> None:
        on_end = partial(self._ended, request_id)
        self.engine.submit(
            request_id, prompt, max_tokens, on_token=on_token, on_end=on_end, **options
        )

    def _give_up(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def _ended(self, request_id: str, reason: FinishReason) -> None:
        with self._lock:
            on_end = self._live.pop(request_id, None)
        if on_end is not None:
            on_end(reason)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self.engine.wait_for_work(IDLE_WAIT_S):
                self._step()
        with self._lock:
            left = list(self._live)
        for request_id in left:
            self._give_up(request_id)
        self.engine.step()
        for request_id in left:
            self._ended(request_id, FinishReason.ABORT)

    def _step(self) -> None:
        """One iteration. A failed one has failed its members: the rest goes on."""
        try:
            self.engine.step()
        except Exception as why:  # noqa: BLE001  (whatever the device raised)
            print(f"engine: an iteration failed: {why!r}", file=sys.stderr)
