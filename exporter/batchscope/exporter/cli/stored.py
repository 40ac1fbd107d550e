"""A store file that no exporter has open, asked through one of our own, read-only."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchscope.exporter.cli import children
from batchscope.exporter.errors import BatchscopeError, ConfigError

START_S = 20.0


@contextmanager
def reading(store: Path) -> Iterator[str]:
    """A read-only exporter on a store file; its URL."""
    if not store.is_file():
        raise ConfigError(f"there is no file {store}")
    port = children.free_port()
    flags = ["--read-only", "--store", str(store), "--listen", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "batchscope.exporter.cli", "serve", *flags]
    with children.running(command, env={**os.environ, "BATCHSCOPE_TOKEN": ""}) as child:
        _await(f"http://127.0.0.1:{port}", child)
        yield f"http://127.0.0.1:{port}"


def _await(url: str, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.poll() is None:
        if children.answers(f"{url}/readyz"):
            return
        time.sleep(0.1)
    raise BatchscopeError("the exporter on that store did not start; its message is above")
