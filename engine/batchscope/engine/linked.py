"""What both halves of a split have in common: a loop that steps, a line that is kept up.

When the line is lost, the half forgets all that hung on it, and then tries to be linked again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, ClassVar

from batchscope.engine.engine import Engine
from batchscope.engine.link import Arena, Link
from batchscope.engine.loop import IDLE_WAIT_S, EngineLoop
from batchscope.engine.runner import HasPages

RETRY_S = 0.2
Reach = Callable[[], Connection]
"""Connects to the other half, or waits for it; OSError: it is not there (yet)."""


class LinkedLoop(EngineLoop):
    """An EngineLoop that hears another one. `HEARD` maps a message's kind to its method, which is
    called on the line's own thread. Without pages in the runner (the cost model has none) requests
    move, and no bytes. With `once` the first line is the only one.

    `_line` is there from the first contact on, `_link` once the two agree.
    """

    HEARD: ClassVar[dict[str, Callable[..., None]]]

    def __init__(
        self,
        engine: Engine,
        reach: Reach,
        *,
        max_waiting: int = 256,
        once: bool = False,
    ) -> None:
        super().__init__(engine, max_waiting=max_waiting)
        self._reach, self._once = reach, once
        self._pages = engine.runner if isinstance(engine.runner, HasPages) else None
        self._arena: Arena | None = None
        self._link: Link | None = None
        self._line: Link | None = None
        self._talker = threading.Thread(target=self._keep_linked, name="link", daemon=True)
        self._said = ""

    @property
    def linked(self) -> bool:
        """Whether the other half can be heard."""
        return self._link is not None

    def start(self) -> None:
        """Begin to step, and to look for the other half."""
        super().start()
        self._talker.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """As EngineLoop, and hang up."""
        super().stop(timeout_s)
        if (line := self._line) is not None:
            line.hang_up()
        if self._talker.is_alive():
            self._talker.join(timeout_s)

    def run(self) -> None:
        """start(), and stop() when interrupted, or when there will be no other line."""
        self.start()
        with suppress(KeyboardInterrupt):
            while self._talker.is_alive():
                self._talker.join(IDLE_WAIT_S)
        self._reach = _nowhere
        self.stop()

    def _greet(self, link: Link) -> None:
        """Agree on what the two have in common. Raises OSError when they can't work together."""
        raise NotImplementedError

    def _forget(self) -> None:
        """The other half has gone, with all that it had. Called on the engine's thread."""
        raise NotImplementedError

    def _tell(self, kind: str, *rest: Any) -> bool:
        """Send a message; False when nobody is there to hear it."""
        link = self._link
        return link is not None and link.send(kind, *rest)

    def _keep_linked(self) -> None:
        while not self._stop.is_set():
            try:
                self._line = Link(self._reach())
                self._greet(self._line)
                self._said = ""
                self._converse(self._line)
                self._complain("the other half has gone", aloud=not self._once)
            except (OSError, EOFError) as why:
                self._complain(str(why), aloud=self._line is not None)
                self._stop.wait(RETRY_S)
            if self._line is not None:
                self._line.close()
                self._line = None
                if self._once:
                    return

    def _converse(self, link: Link) -> None:
        self._link = link
        for kind, *rest in link.messages():
            self.HEARD[kind](self, *rest)
            if self._stop.is_set():
                break
        self._link = None
        forgotten = threading.Event()
        self.engine.post(self._forget)
        self.engine.post(forgotten.set)
        while not (forgotten.wait(RETRY_S) or self._stop.is_set()):
            pass

    def _complain(self, why: str, *, aloud: bool) -> None:
        """Say once why the halves can't work together; that one isn't there yet is no news."""
        if aloud and why != self._said and not self._stop.is_set():
            self._said = why
            with suppress(OSError):
                print(f"engine: not linked: {why}", file=sys.stderr)


def _nowhere() -> Connection:
    raise ConnectionError("no more lines")


def identity(engine: Engine) -> dict[str, Any]:
    """What two engines must have in common for the KV of one to be that of the other."""
    config, runner = engine.config, engine.runner
    weights = None if config.weights is None else config.weights.rstrip("/").rsplit("/", 1)[-1]
    return {
        "model": asdict(config.model) | {"eos_token_ids": list(config.model.eos_token_ids)},
        "weights": weights,
        "seed": config.seed,
        "block_size": config.block_size,
        "page_bytes": runner.page_bytes if isinstance(runner, HasPages) else None,
    }
