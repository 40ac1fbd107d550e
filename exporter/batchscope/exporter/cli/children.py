"""Processes that a command starts for itself, ended with it."""

from __future__ import annotations

import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

END_S = 15.0


@contextmanager
def running(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, log: IO[Any] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A child that ends with us. log: where it speaks; None: where we do."""
    child = subprocess.Popen(list(command), env=env, stdout=log, stderr=log)
    try:
        yield child
    finally:
        end(child)


def end(child: subprocess.Popen[Any]) -> None:
    """Ask it to end, then make it."""
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def answers(url: str) -> bool:
    """Whether a GET succeeds there."""
    try:
        urllib.request.urlopen(url, timeout=1).close()  # noqa: S310 (our own URL)
    except (urllib.error.URLError, OSError):
        return False
    return True


def free_port() -> int:
    """A port of the loopback interface that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
