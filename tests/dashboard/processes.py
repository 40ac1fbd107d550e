"""Starts the pages, and the exporter they ask, as processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from batchscope.dashboard.launch import command

START_S = 30.0


@contextmanager
def exporter(*flags: str) -> Iterator[str]:
    """The stand-in exporter; its address."""
    argv = [sys.executable, "-W", "ignore", "-m", "tests.dashboard.fake_exporter", *flags]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@contextmanager
def pages(exporter_url: str) -> Iterator[str]:
    """The dashboard of one exporter; its address, once it answers."""
    port = free_port()
    environment = {**os.environ, "BATCHSCOPE_URL": exporter_url}
    with subprocess.Popen(
        command(port=port), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/_stcore/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str) -> None:
    """Polls until the address answers. Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    while not answers(url):
        if time.monotonic() > deadline:
            raise TimeoutError(url)
        time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether the address says 200."""
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
