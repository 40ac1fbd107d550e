"""How often a fresh engine without batchscope is entered by --inject, under load, and lives.

    python -m bench.entering PYTHON [NUMBER]

Each time an engine of that Python, with two more threads that allocate all the while; entered as
`batchscope attach PID --inject` does it. Says how many recorded, and ended with all their requests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

from batchscope.exporter.cli import asking, entering
from batchscope.exporter.errors import BatchscopeError
from batchscope.schemas.ring import LEVEL_MEMBERS

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "tests/support/bare_engine.py"
NUMBER, WAIT_S, MS = 150, 30.0, 1000


def main(python: str, number: int) -> int:
    """0 when every single one went well."""
    found: Counter[str] = Counter()
    seconds: list[float] = []
    for turn in range(number):
        began = time.perf_counter()
        found[once(python, pause_s=0.005 * (turn % 20))] += 1
        seconds.append(time.perf_counter() - began)
    median = sorted(seconds)[len(seconds) // 2]
    print(f"{python}: {dict(found)} of {number}, {median:.1f} s each with the engine's own start")
    return int(found != {"well": number})


def once(python: str, *, pause_s: float) -> str:
    """`well`, or what went wrong with one engine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        child = started(python, Path(folder))
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(pause_s)  # another moment of its life each time
        outcome = entered(child.pid, Path(folder))
        try:
            said, complaint = child.communicate("\n", timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return "hung"
    submitted, _, finished = said.strip().partition(" ")
    lived = child.returncode == 0 and submitted == finished and not complaint
    return outcome if lived else f"ended {child.returncode}: {complaint[-200:]}"


def entered(pid: int, folder: Path) -> str:
    """`well` when it records, else the sentence that a person would have read."""
    try:
        found = entering.enter(pid, folder, argparse.Namespace(inject=True, wait=WAIT_S))
    except BatchscopeError as why:
        return str(why)
    asked = asking.ask_level(folder, found, LEVEL_MEMBERS)
    asking.await_answers(folder, asked, answer=asking.is_attached, seconds=WAIT_S)
    return "well" if [one.outcome for one in asked] == ["attached"] else asked[0].outcome


def started(python: str, folder: Path) -> subprocess.Popen[str]:
    """An engine that knows only itself."""
    settings = {
        "PYTHONPATH": str(ROOT / "engine"),
        "BATCHSCOPE_DIR": str(folder),
        "BATCHSCOPE_RING_BYTES": "1000000",
        "BATCHSCOPE_OVERHEAD": "0",
    }
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [python, ENGINE, "busy"],
        env=os.environ | settings,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )


if __name__ == "__main__":
    import_module("pyinjector")  # of the extra `inject`: missing, nothing here makes sense
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else NUMBER))
