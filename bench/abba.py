"""On against off inside one run: blocks in the order off, on, on, off, beside off, off, off, off.

Each such quad gives one paired difference of a block's median interval and CPU time; the 95 %
interval is Student's t over quads.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from batchscope.schemas.ring import LEVEL_MEMBERS, LEVEL_OFF

BLOCK_STEPS, SETTLE_STEPS = 200, 40
T_95 = {7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093}
PLANS = {"on_off": (LEVEL_OFF, LEVEL_MEMBERS), "a_a": (LEVEL_OFF, LEVEL_OFF)}

Block = Callable[[int], tuple[float, float]]
"""Runs a block at a detail level: its (median interval, median CPU time), ns."""


def compared(block: Block, *, quads: int) -> dict[str, Any]:
    """{on_off, a_a: {interval_ms, interval, cpu: {difference, half_width, contains_0}}}; the
    differences are ratios of the off blocks.
    """
    return {name: _compare(block, *levels, quads) for name, levels in PLANS.items()}


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """(median interval, median CPU time of this thread) of a block's steps, ns, once it settled."""
    for _ in range(SETTLE_STEPS):
        step()
    walls, cpus = [], []
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(BLOCK_STEPS):
        step()
        now, used = time.perf_counter_ns(), time.thread_time_ns()
        walls.append(now - wall)
        cpus.append(used - cpu)
        wall, cpu = now, used
    return statistics.median(walls), statistics.median(cpus)


def _compare(block: Block, off: int, on: int, quads: int) -> dict[str, Any]:
    differences: dict[str, list[float]] = {"interval": [], "cpu": []}
    intervals = []
    for _ in range(quads):
        a1, b1, b2, a2 = (block(level) for level in (off, on, on, off))
        intervals += [a1[0], a2[0]]
        for index, name in enumerate(("interval", "cpu")):
            base = a1[index] + a2[index]
            differences[name].append((b1[index] + b2[index] - base) / base)
    paired = {name: paired_interval(values) for name, values in differences.items()}
    return {"interval_ms": statistics.median(intervals) / 1e6, **paired}


def paired_interval(values: list[float]) -> dict[str, float | bool]:
    """Mean and 95 % half-width of paired differences."""
    mean = statistics.fmean(values)
    t = T_95.get(len(values) - 1, 2.1)
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return {"difference": mean, "half_width": half, "contains_0": abs(mean) <= half}


def table(figures: dict[str, Any]) -> str:
    """The figures as lines for a person."""
    lines = [f"{figures['members']} members, ABBA blocks of {figures['block_steps']} iterations"]
    for name in PLANS:
        for what in ("interval", "cpu"):
            f = figures[name][what]
            lines.append(
                f"  {name:7} {what:9} {f['difference']:+.3%} +- {f['half_width']:.3%}"
                f"  (0 inside: {f['contains_0']}; interval {figures[name]['interval_ms']:.2f} ms)"
            )
    return "\n".join(lines)
