"""What the adapter costs on the engine's thread (P1): SCHEDULED + COMPLETED per iteration.

The engine is the cheapest that the hooks accept: real requests and batches, a scheduler that only
hands out prepared ones. Each iteration is timed hooked and, in the same loop, bare; the cost is
their difference.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchscope.adapters import mini
from batchscope.engine.batch import Batch
from batchscope.engine.blocks import BlockManager
from batchscope.engine.config import EngineConfig
from batchscope.engine.sequence import FinishReason, Sequence, Status

ITERATIONS = 4000
WARM_UP = 300
BARS_US = {
    "steady 256": {"p50": 15.0, "p99": 60.0},
    "changed 256": {"p50": 45.0, "p99": 60.0},
    "steady 2000": {"p50": 250.0},
    "changed 2000": {"p50": 250.0},
    "dormant": {"p50": 0.3},
}


@dataclass
class Cheap:
    """A scheduler with all that the adapter reads and methods that do next to nothing."""

    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)
    blocks: BlockManager = field(default_factory=lambda: BlockManager(6250, 16))
    next: Batch | None = None

    def schedule(self) -> Batch:
        """The prepared batch."""
        assert self.next is not None
        return self.next

    def update(self, _batch: Batch, _tokens: dict[str, int]) -> list[Sequence]:
        """Nobody finishes here."""
        return []

    def add(self, seq: Sequence) -> None:
        """An arrival that goes straight to running."""
        seq.status = Status.RUNNING
        self.running.append(seq)

    def preempt(self, seq: Sequence) -> None:
        """Never called."""

    def finish(self, seq: Sequence, _reason: FinishReason) -> None:
        """The request leaves."""
        self.running.remove(seq)


@dataclass
class CheapEngine:
    """What mini.attach takes for an engine."""

    scheduler: Cheap = field(default_factory=Cheap)
    config: EngineConfig = field(default_factory=EngineConfig)
    runner: Any = None


def decode_batch(step: int, running: list[Sequence]) -> Batch:
    """All of them decode one token, as the real scheduler builds it."""
    batch = Batch(step, 4096)
    for seq in running:
        batch.add(seq, 1)
    return batch


def new_sequence(number: int) -> Sequence:
    """A request in decode."""
    seq = Sequence(f"cmpl-{number:032x}", [1] * 64, 1 << 30, arrival_ns=0)
    seq.num_computed = 64
    return seq


def steady(engine: CheapEngine) -> Iterator[Batch]:
    """The same members for ever."""
    for step in range(sys.maxsize):
        yield decode_batch(step, engine.scheduler.running)


def changed(engine: CheapEngine) -> Iterator[Batch]:
    """Before every iteration one request leaves and another joins, with its prefill."""
    scheduler = engine.scheduler
    for step in range(sys.maxsize):
        scheduler.finish(scheduler.running[step % 7], FinishReason.LENGTH)
        seq = new_sequence(1_000_000 + step)
        scheduler.add(seq)
        batch = decode_batch(step, scheduler.running[:-1])
        seq.num_computed = 0
        batch.add(seq, 64)
        seq.num_computed = 64
        yield batch


def measure(
    members: int,
    batches: Callable[[CheapEngine], Iterator[Batch]],
    env: dict[str, str],
    *,
    pause_s: float = 0.0,
) -> list[int]:
    """Nanoseconds per iteration that hooks add to schedule() and update(); after each a pause."""
    engine = CheapEngine()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        handle = mini.attach(engine, {"BATCHSCOPE_DIR": folder, "BATCHSCOPE_OVERHEAD": "0", **env})
        for number in range(members):
            engine.scheduler.add(new_sequence(number))
        costs = [
            _one(engine, batch, pause_s)
            for _, batch in zip(range(ITERATIONS), batches(engine), strict=False)
        ]
        handle.detach()
    return costs[WARM_UP:]


def _one(engine: CheapEngine, batch: Batch, pause_s: float) -> int:
    if pause_s:
        time.sleep(pause_s)
    scheduler = engine.scheduler
    tokens = {m.seq.request_id: 1 for m in batch.members}
    scheduler.next = batch
    clock = time.perf_counter_ns
    began = clock()
    scheduler.update(scheduler.schedule(), tokens)
    hooked = clock() - began
    began = clock()
    Cheap.update(scheduler, Cheap.schedule(scheduler), tokens)
    return hooked - (clock() - began)


def summary(costs: list[int]) -> dict[str, float]:
    """Quantiles in microseconds."""
    ordered = sorted(costs)
    at = {"p10": 0.10, "p50": 0.50, "p99": 0.99}
    figures = {name: ordered[int(q * (len(ordered) - 1))] / 1e3 for name, q in at.items()}
    return {**figures, "max": ordered[-1] / 1e3}


def run() -> dict[str, Any]:
    """All cases with garbage collection off; 256 members also with it, to tell its pauses.

    "no hooks" is what the measurement itself adds: both sides of the difference are bare.
    """
    active = {"BATCHSCOPE": "1"}
    dormant: dict[str, str] = {}
    cases = {
        "no hooks (A/A)": (256, steady, {"BATCHSCOPE": "0"}),
        "dormant": (256, steady, dormant),
        "steady 256": (256, steady, active),
        "changed 256": (256, changed, active),
        "steady 2000": (2000, steady, active),
        "changed 2000": (2000, changed, active),
    }
    figures: dict[str, Any] = {}
    for name, case in cases.items():
        gc.disable()
        try:
            figures[name] = summary(measure(*case))
        finally:
            gc.enable()
    for name in ("steady 256", "changed 256"):
        figures[f"{name}, gc on"] = summary(measure(*cases[name]))
    figures["steady 256, asleep 3 ms before each"] = summary(
        measure(*cases["steady 256"], pause_s=0.003)
    )
    return {"unit": "us per iteration", "iterations": ITERATIONS, "cases": figures, "bars": BARS_US}


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [f"{'us per iteration':36}{'p10':>9}{'p50':>9}{'p99':>9}{'max':>10}   bars"]
    for name, case in result["cases"].items():
        bars = " ".join(f"{k} <= {v:g}" for k, v in result["bars"].get(name, {}).items())
        row = "".join(f"{case[q]:9.2f}" for q in ("p10", "p50", "p99"))
        lines.append(f"{name:36}{row}{case['max']:10.1f}   {bars}")
    return "\n".join(lines)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    found = run()
    print(table(found), file=sys.stderr)
    print(json.dumps(found))
