"""The cost-model runner, fed with the times that a real model took, takes the same decisions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.cost import CostTable
from batchscope.engine.engine import Engine
from batchscope.engine.policies import POLICIES
from batchscope.engine.torch_runner import TorchRunner
from batchscope.engine.virtual import Simulation, VirtualClock


class Row(NamedTuple):
    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    abort_after_ns: int | None


ROWS = [
    Row(i, i * 2_000_000, 20 + 37 * i % 75, 5 + 7 * i % 30, 30_000_000 if i % 11 == 5 else None)
    for i in range(60)
]


def prompt(row: Any) -> list[int]:
    """Every other one begins like its neighbours."""
    own = [(31 * row.ordinal + 7 * place) % 512 for place in range(row.prompt_tokens)]
    return ([3] * 32 + own)[: row.prompt_tokens] if row.ordinal % 2 else own


def config(policy: str, **changes: Any) -> EngineConfig:
    return EngineConfig(
        policy=policy,
        num_blocks=40,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=128,
        model=ModelConfig(dtype="float32"),
        device="cpu",
        **changes,
    )


def decision(batch: Batch) -> tuple[Any, ...]:
    """All that a batch says about who is in, who is out and why."""
    return (
        [(m.seq.request_id, m.start, m.tokens, m.is_prefill) for m in batch.members],
        batch.stop,
        batch.stop_head and batch.stop_head.request_id,
        [(seq.request_id, lost) for seq, lost in batch.preempted],
        [seq.request_id for seq in batch.resumed],
    )


def keep_decisions(engine: Engine) -> list[tuple[Any, ...]]:
    kept, schedule = [], engine.scheduler.schedule

    def kept_too() -> Batch:
        batch = schedule()
        kept.append(decision(batch))
        return batch

    engine.scheduler.schedule = kept_too  # type: ignore[method-assign]
    return kept


class Timed:
    """A real model whose clock is moved by what it really took, and by nothing else."""

    def __init__(self, settings: EngineConfig, clock: VirtualClock) -> None:
        self._inner, self._clock = TorchRunner(settings), clock
        self.took: list[int] = []

    def run(self, batch: Batch) -> dict[str, int]:
        began = time.perf_counter_ns()
        tokens = self._inner.run(batch)
        self.took.append(time.perf_counter_ns() - began)
        self._clock.now_ns += self.took[-1]
        return tokens


@dataclass(frozen=True)
class Recorded(CostTable):
    """Prices batches one after the other by what was recorded."""

    took: Iterator[int]

    def price_ns(self, batch: Batch) -> int:
        return next(self.took)


def serve_really(engine: Engine, clock: VirtualClock) -> None:
    """Open loop: who has come is submitted, who has lost patience aborted, then a step."""
    coming, leaving = list(ROWS), []
    while coming or engine.has_work():
        if not engine.has_work():
            clock.until(coming[0].at_ns)
        now = clock()
        while coming and coming[0].at_ns <= now:
            row = coming.pop(0)
            engine.submit(f"r{row.ordinal}", prompt(row), row.output_tokens)
            if row.abort_after_ns is not None:
                leaving.append((row.at_ns + row.abort_after_ns, f"r{row.ordinal}"))
        for at_ns, name in [one for one in sorted(leaving) if one[0] <= now]:
            leaving.remove((at_ns, name))
            engine.abort(name)
        engine.step()


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_cost_model_fed_with_a_real_models_times_decides_alike_batch_by_batch(
    policy: str,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clock = VirtualClock()
        runner = Timed(config(policy), clock)
        real = Engine(config(policy), runner=runner, clock=clock)
        real_decisions = keep_decisions(real)
        serve_really(real, clock)
    finally:
        torch.set_num_threads(before)

    table = Recorded("recorded", 0, 0, 0, 0, took=iter(runner.took))
    replayed = Simulation(config(policy, runner="cost"), table=table)
    decisions = keep_decisions(replayed.engine)
    replayed.run(ROWS, prompt=prompt)

    assert len(decisions) == len(runner.took) > 100
    assert decisions == real_decisions
    assert replayed.engine.totals == real.totals
    assert replayed.clock.now_ns == clock.now_ns
    assert (real.totals.preemptions > 0) == (policy in ("chunked", "paged"))
    assert real.totals.cached > 0
