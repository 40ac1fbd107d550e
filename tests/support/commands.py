"""The command line under test, in a process without any extra installed, and engines for it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DEADLINE_S = 20.0


def base(*words: Any, env: Any = None, code: Any = 0) -> Any:
    """Run a command with the base install only; its exit code must be `code`."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.base_install", *map(str, words)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=environment(env),
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def as_json(*words: Any, env: Any = None, code: Any = 0) -> Any:
    return json.loads(base(*words, "--json", env=env, code=code).stdout)


def environment(env: Any) -> Any:
    """This process's, without what would lead a command elsewhere."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("BATCHSCOPE")}
    return {**kept, "BATCHSCOPE_OVERHEAD": "0", **(env or {})}


@contextmanager
def engine(folder: Any, mode: Any = "attach", **env: Any) -> Iterator[Any]:
    """A running bundled engine in a process of its own; ended by closing its stdin."""
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.support.mini_engine", mode],
        cwd=ROOT,
        env=environment({"BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_RING_BYTES": "1000000", **env}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "running\n"
        yield child
    finally:
        child.stdin.close()
        child.kill() if child.poll() is None and not ended(child) else None
        child.wait(DEADLINE_S)
        child.stdout.close()


def ended(child: Any) -> Any:
    """Whether it ends by itself in time."""
    try:
        child.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def until(true: Any) -> Any:
    """What it returns, as soon as that is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := true()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return found
