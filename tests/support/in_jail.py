"""Runs inside the jail, unprivileged: starts exporter and dashboard, asks both, prints JSON.

python -m tests.support.in_jail RINGS STATE ITERATIONS
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import Any

EXPORTER, PAGES = "http://127.0.0.1:9477", "http://127.0.0.1:8501"


@contextmanager
def running(*words: Any) -> Any:
    command = [sys.executable, "-m", "batchscope.exporter.cli", *words]
    child = subprocess.Popen(command, stdout=sys.stderr)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(20)


def get(url: Any, seconds: Any) -> Any:
    """The body, as soon as there is one."""
    deadline = time.monotonic() + seconds
    while (body := attempt(url)) is None:
        assert time.monotonic() < deadline, f"{url} does not answer"
        time.sleep(0.1)
    return body


def attempt(url: Any) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.read()
    except (urllib.error.URLError, OSError):
        return None


def newest() -> Any:
    columns = json.loads(get(f"{EXPORTER}/api/v1/query/newest", 5))["columns"]
    return max(columns["iteration_id"], default=0)


def refused_path(path: Any) -> Any:
    try:
        with open(path, "w"):
            return False
    except OSError:
        return True


def main(rings: Any, state: Any, iterations: Any) -> None:
    serve = ("serve", "--dir", rings, "--store", f"{state}/s.duckdb")
    with running(*serve), running("dashboard"):
        get(f"{EXPORTER}/readyz", 30)
        deadline = time.monotonic() + 15
        while newest() < int(iterations) and time.monotonic() < deadline:
            time.sleep(0.05)
        said = {
            "uid": os.getuid(),
            "newest": newest(),
            "metrics": b"batchscope_iterations_total" in get(f"{EXPORTER}/metrics", 5),
            "dashboard": get(f"{PAGES}/_stcore/health", 30).decode(),
            "root_is_read_only": refused_path("/written") and refused_path("/tmp/written"),
            "rings_are_read_only": refused_path(f"{rings}/written.ring"),
        }
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
