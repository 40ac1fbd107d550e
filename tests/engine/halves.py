"""A prefill and a decode engine on one line in this process, and clients of theirs."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.decode import DecodeLoop
from batchscope.engine.engine import Engine
from batchscope.engine.pair import once
from batchscope.engine.prefill import PrefillLoop
from batchscope.engine.sequence import FinishReason

DEADLINE_S = 20.0
MODEL = ModelConfig(dtype="float64", vocab_size=300)


class Pair(NamedTuple):
    """Both halves, running; what `prefill` is asked for comes from both."""

    prefill: PrefillLoop
    decode: DecodeLoop

    @property
    def engines(self) -> tuple[Engine, Engine]:
        """The two engines."""
        return self.prefill.engine, self.decode.engine


class Client:
    """Who hears a request's tokens and its end, and when (ns)."""

    def __init__(self, loop: PrefillLoop, name: str, prompt: list[int], max_tokens: int) -> None:
        self.name = name
        self.tokens: list[int] = []
        self.at_ns: list[int] = []
        self.reason: FinishReason | None = None
        self._over = threading.Event()
        loop.submit(name, prompt, max_tokens, on_token=self._hear, on_end=self._end)

    def _hear(self, token: int) -> None:
        self.tokens.append(token)
        self.at_ns.append(time.monotonic_ns())

    def _end(self, reason: FinishReason) -> None:
        self.reason = reason
        self._over.set()

    def wait(self) -> list[int]:
        """Its tokens, once it has ended."""
        assert self._over.wait(DEADLINE_S), f"{self.name} never ended"
        return self.tokens


def engine(runner: str = "cost", **config: Any) -> Engine:
    """A small engine; the cost model's without its waits."""
    shape: dict[str, Any] = {"num_blocks": 200, "max_model_len": 512, "model": MODEL}
    settings = EngineConfig(**(shape | {"runner": runner} | config))
    return Engine(settings, runner=CostRunner(sleep=_at_once) if runner == "cost" else None)


@contextmanager
def running(prefill: Engine, decode: Engine, *, linked: bool = True) -> Iterator[Pair]:
    """Both loops from start to stop; `linked` before anything is asked."""
    near, far = multiprocessing.Pipe()
    pair = Pair(PrefillLoop(prefill, once(near)), DecodeLoop(decode, once(far)))
    for loop in reversed(pair):
        loop.start()
    try:
        until(lambda: pair.prefill.linked or not linked)
        yield pair
    finally:
        for loop in pair:
            loop.stop()


def until(true: Callable[[], bool], *, why: str = "") -> None:
    """Poll, at most for the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, why or "it never came true"
        time.sleep(0.002)


def at_rest(pair: Pair) -> bool:
    """Nobody lives on either side, and no page is in use."""
    return all(
        not (e.scheduler.live or e.scheduler.kept or e.scheduler.blocks.used) for e in pair.engines
    )


def _at_once(_seconds: float) -> None:
    """No wait."""
