"""`make bench`: every figure as a table and in bench/results.json, then docs/overhead.md from it.

`python -m bench observer ingest` runs only these and keeps the others' last figures.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.report import OVERHEAD, RESULTS, render

BENCHES = {
    "observer": "what a hook costs on the engine's thread (P1), about 1 minute",
    "vllm_hooks": "the same on a real vLLM's scheduler, about 2 minutes",
    "impact": "an engine with and without us (P2), about 6 minutes",
    "vllm_impact": "a real vLLM with and without us (P2), about 9 minutes",
    "ingest": "exporter sustained, freshness, scrape, disk (P3, P4, P6, P7), about 2 minutes",
    "whatif": "an hour of traffic in virtual time (P8), about 1 minute",
    "policies": "the same traffic under each policy (docs/policies.md), about 1 minute",
}


def main(names: list[str]) -> int:
    """Run benches by name, each in a process of its own; 2 for an unknown name."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"no bench {unknown[0]!r}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    for number, name in enumerate(chosen := names or list(BENCHES), start=1):
        print(f"[{number}/{len(chosen)}] {name}: {BENCHES[name]}", file=sys.stderr, flush=True)
        results, about, figures = _results(), conditions(), _run(name)
        if figures is None:  # it can't be run here, and has said why
            continue
        results[name] = {"conditions": about, "figures": figures}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        OVERHEAD.write_text(render(results))
    return 0


def conditions() -> dict[str, Any]:
    """What a figure depends on."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "batchscope": version("batchscope"),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def _run(name: str) -> Any:
    """The figures of one bench: its table goes to the terminal, its dict comes back as JSON."""
    code = (
        f"import json, sys; from contextlib import redirect_stdout; from bench import {name} as b\n"
        "with redirect_stdout(sys.stderr):\n"
        "    found = b.run()\n"
        "    print(b.table(found)) if found and hasattr(b, 'table') else None\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
