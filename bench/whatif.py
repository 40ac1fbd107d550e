"""An hour of real-shaped traffic through the real scheduler in virtual time, observed (P8).

The trace is the Azure conversation trace of 2023 where BATCHSCOPE_TRACES has it, else an hour drawn
from the chat preset, which was fitted to its published statistics.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100
from batchscope.engine.virtual import Simulation
from batchscope.workload.presets import preset
from batchscope.workload.read import read_trace
from batchscope.workload.shape import clipped, limited
from batchscope.workload.trace import Trace

AZURE = "azure2023_conv.csv.gz"
RATE_PER_S, HOUR_S = 5.5, 3600
CONFIG = EngineConfig(
    runner="cost", max_num_seqs=256, max_model_len=16384, enable_prefix_caching=False
)
BAR_X = 20.0


def traffic(seconds: int = HOUR_S) -> tuple[str, Trace]:
    """(its name, so many seconds of it)."""
    path = Path(os.environ.get("BATCHSCOPE_TRACES", "")) / AZURE
    if path.is_file():
        return "azure 2023 conversation", limited(
            read_trace(path), duration_ns=seconds * 1_000_000_000
        )
    drawn = preset("chat", rate_per_s=RATE_PER_S, requests=round(RATE_PER_S * seconds), seed=1)
    return "chat preset", clipped(drawn, max_prompt_tokens=8000, max_output_tokens=2000)


def observed(simulation: Simulation, trace: Trace) -> float:
    """Wall seconds that the whole trace takes with the adapter at work."""
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_OVERHEAD": "0"}
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        env["BATCHSCOPE_DIR"] = folder
        clock = simulation.clock
        handle = mini.attach(simulation.engine, env, clock=clock, wall=clock)
        if not handle.attached:
            raise RuntimeError("no ring: the figure would be that of an engine on its own")
        began = time.perf_counter()
        simulation.run(trace)
        took = time.perf_counter() - began
        handle.detach()
    return took


def run(seconds: int = HOUR_S) -> dict[str, Any]:
    """Virtual against wall time, and what the traffic was like: a bench that idles is easy."""
    name, trace = traffic(seconds)
    simulation = Simulation(CONFIG)
    took = observed(simulation, trace)
    virtual = simulation.clock.now_ns / 1e9
    gaps = np.concatenate([np.diff(served.token_ns) for served in simulation.served])
    return {
        "trace": name,
        "cost_table": SEVEN_B_A100.name,
        "virtual_s": virtual,
        "wall_s": took,
        "times_real_time": virtual / took,
        "bar": BAR_X,
        "passed": virtual / took >= BAR_X,
        "busy_ratio": sum(s.ended_ns - s.began_ns for s in simulation.steps) / 1e9 / virtual,
        "tbt_ms": {f"p{q}": float(np.percentile(gaps, q)) / 1e6 for q in (50, 99)},
        "engine": simulation.engine.totals.as_dict(),
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    return (
        f"{result['trace']}: {result['virtual_s']:.0f} s in {result['wall_s']:.1f} s, "
        f"{result['times_real_time']:.0f}x real time (bar {result['bar']:.0f}x), "
        f"{result['engine']['iterations']} iterations, busy {result['busy_ratio']:.0%}"
    )


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    found = run()
    print(table(found), file=sys.stderr)
    print(json.dumps(found))
