"""What observing costs a whole engine: on and off in one run, by ABBA blocks, beside an A/A run.

The detail level is flipped by the control word every 200 iterations of the bundled engine in steady
decode. Each ABBA quad gives one paired difference of the block's median interval and CPU time; the
95 % interval is Student's t over quads.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.engine import Engine
from batchscope.schemas.ring import LEVEL_MEMBERS, LEVEL_OFF, set_level

BLOCK_STEPS, SETTLE_STEPS = 200, 40
MEMBERS = 64
PROMPT_TOKENS = 32
T_95 = {7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093}


class Subject:
    """A bundled engine in steady decode, observed; requests are renewed before they grow long."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = EngineConfig(
            runner="torch",
            max_num_seqs=MEMBERS,
            num_blocks=MEMBERS * 40,
            max_num_batched_tokens=4096,
            max_model_len=640,
        )
        self.engine = Engine(config)
        env = os.environ | {
            "BATCHSCOPE": "1",
            "BATCHSCOPE_DIR": str(folder),
            "BATCHSCOPE_OVERHEAD": "0",
        }
        self.handle = mini.attach(self.engine, env)
        self._made = 0

    def refill(self) -> None:
        """As many running requests as there are slots, all at the same short context."""
        for seq in list(self.engine.scheduler.live.values()):
            self.engine.abort(seq.request_id)
        for _ in range(MEMBERS):
            self._made += 1
            prompt = [(self._made * 7 + i) % 500 for i in range(PROMPT_TOKENS)]
            self.engine.submit(f"r{self._made}", prompt, 600)
        self.engine.step()
        self.engine.step()

    def block(self, level: int) -> tuple[float, float]:
        """(median interval, median CPU time) of a block's settled steps, ns."""
        self.refill()
        assert self.handle.ring_uuid is not None
        set_level(self.folder, self.handle.ring_uuid, level)
        for _ in range(SETTLE_STEPS):
            self.engine.step()
        walls, cpus = [], []
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(BLOCK_STEPS):
            self.engine.step()
            now, used = time.perf_counter_ns(), time.thread_time_ns()
            walls.append(now - wall)
            cpus.append(used - cpu)
            wall, cpu = now, used
        return statistics.median(walls), statistics.median(cpus)


def run(*, quads: int = 36) -> dict[str, Any]:
    """{on_off, a_a: {interval, cpu: {difference, half_width}}}, ratios of the off blocks."""
    import torch

    torch.set_num_threads(1)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="batchscope-impact-", dir=base))
    try:
        subject = Subject(folder)
        subject.block(LEVEL_MEMBERS)
        plans = {"on_off": (LEVEL_OFF, LEVEL_MEMBERS), "a_a": (LEVEL_OFF, LEVEL_OFF)}
        figures = {name: _compare(subject, *levels, quads) for name, levels in plans.items()}
        subject.handle.detach()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"members": MEMBERS, "block_steps": BLOCK_STEPS, "quads": quads, **figures}


def _compare(subject: Subject, off: int, on: int, quads: int) -> dict[str, Any]:
    differences: dict[str, list[float]] = {"interval": [], "cpu": []}
    intervals = []
    for _ in range(quads):
        a1, b1, b2, a2 = (subject.block(level) for level in (off, on, on, off))
        intervals += [a1[0], a2[0]]
        for index, name in enumerate(("interval", "cpu")):
            base = a1[index] + a2[index]
            differences[name].append((b1[index] + b2[index] - base) / base)
    paired = {name: _interval(values) for name, values in differences.items()}
    return {"interval_ms": statistics.median(intervals) / 1e6, **paired}


def _interval(values: list[float]) -> dict[str, float | bool]:
    mean = statistics.fmean(values)
    t = T_95.get(len(values) - 1, 2.1)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return {"difference": mean, "half_width": half, "contains_0": abs(mean) <= half}


def table(figures: dict[str, Any]) -> str:
    """The figures as lines for a person."""
    lines = [f"{figures['members']} members, ABBA blocks of {figures['block_steps']} iterations"]
    for name in ("on_off", "a_a"):
        for what in ("interval", "cpu"):
            f = figures[name][what]
            lines.append(
                f"  {name:7} {what:9} {f['difference']:+.3%} +- {f['half_width']:.3%}"
                f"  (0 inside: {f['contains_0']}; interval {figures[name]['interval_ms']:.2f} ms)"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(run()))
