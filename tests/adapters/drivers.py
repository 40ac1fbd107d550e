"""One driver per engine that has an adapter: how the contract suite makes it and feeds it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, Protocol

from batchscope.adapters import mini
from batchscope.adapters.base import Adapter
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.hop import Hop
from batchscope.engine.sequence import Sequence

EveryStep = Callable[[int], None]


class EngineDriver(Protocol):
    """Fresh engines of one kind under one seeded load: preemptions, an abort, deferrals, and KV
    that goes to another engine.
    """

    name: str
    aborted: int

    def adapter(self) -> Adapter:
        """The adapter under test."""

    def engine(self) -> Any:
        """A new engine that has done nothing yet."""

    def run(self, engine: Any, *, every_step: EveryStep = ...) -> Any:
        """Serve the whole load; everything that the engine decided and gave out, for ==."""

    def owners(self, engine: Any) -> list[Any]:
        """The objects whose attributes the seams name."""


class MiniDriver:
    """The bundled engine over the cost model, without its waits."""

    name = "mini"
    aborted = 1

    def __init__(self, **config: Any) -> None:
        self.config = EngineConfig(
            **{
                "num_blocks": 40,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 64,
                "max_model_len": 512,
                "runner": "cost",
                **config,
            }
        )

    def adapter(self) -> Adapter:
        return mini.adapter()

    def engine(self, *, clock: Callable[[], int] | None = None) -> Engine:
        runner = CostRunner(sleep=lambda seconds: None)
        if clock is None:
            return Engine(self.config, runner=runner)
        return Engine(self.config, runner=runner, clock=clock)

    def submit(self, engine: Engine, number: int, rng: random.Random) -> None:
        prompt = [rng.randrange(1, 500) for _ in range(rng.randrange(4, 120))]
        if number % 5 == 0:
            prompt = [7] * 64 + prompt  # the prefix cache has something to find
        engine.submit(
            f"r{number}",
            prompt,
            rng.randrange(1, 60),
            priority=number % 3,
            tenant=("red", "green", None)[number % 3],
            trace_context=(bytes([number % 255 + 1]) * 16, b"\1" * 8) if number % 2 else None,
        )

    def hand_over(self, engine: Engine, seq: Sequence) -> None:
        """Tell of KV that went to another engine, as the prefill half of a split does."""
        end_ns = engine.clock()
        hop = Hop(
            "decode",
            incoming=False,
            start_ns=end_ns - 9_000,
            end_ns=end_ns,
            blocks=2,
            nbytes=2048,
            wait_ns=4_000,
            handshake_ns=3_000,
        )
        engine.scheduler.transferred(seq, hop)

    def run(
        self,
        engine: Engine,
        *,
        requests: int = 40,
        every_step: EveryStep = lambda step: None,
    ) -> Any:
        rng = random.Random(11)
        given: dict[str, list[int]] = {}
        steps = sent = 0
        while sent < requests or engine.has_work():
            if steps % 4 == 0 and sent < requests:
                for _ in range(4):
                    self.submit(engine, sent, rng)
                    sent += 1
            if steps == 12:
                engine.abort("r9")
            for seq in engine.step():
                given[seq.request_id] = list(seq.output)
                self.hand_over(engine, seq)
            steps += 1
            every_step(steps)
        return given, engine.totals.as_dict()

    def owners(self, engine: Engine) -> list[Any]:
        return [engine.scheduler]


DRIVERS: list[EngineDriver] = [MiniDriver()]
if os.environ.get("BATCHSCOPE_CONTRACT") == "vllm":  # in vLLM's own environment
    from tests.engines.contract_driver import VllmDriver

    DRIVERS = [VllmDriver()]
