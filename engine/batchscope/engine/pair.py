"""How the halves of a split find each other: by the path of a socket, or as parent and child.

Used by `python -m batchscope.engine`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.connection import Client, Connection, Listener

from batchscope.engine.decode import DecodeLoop
from batchscope.engine.engine import Engine
from batchscope.engine.linked import Reach

INHERITED = "fd:"
"""Begins a link that is an open descriptor instead of a path."""
END_S = 10.0


def dialling(link: str) -> Reach:
    """Connects to the decode engine that listens at this path."""
    return partial(Client, link, family="AF_UNIX")


def once(connection: Connection) -> Reach:
    """Gives this connection, and no second one."""
    left = [connection]

    def reach() -> Connection:
        if not left:
            raise ConnectionError("the other half has gone for good")
        return left.pop()

    return reach


def decode(engine: Engine, link: str) -> None:
    """Be the decode half until interrupted; over an inherited line until that is lost. Raises
    OSError where nothing can listen.
    """
    if link.startswith(INHERITED):
        line = Connection(int(link.removeprefix(INHERITED)))
        DecodeLoop(engine, once(line), once=True).run()
        return
    with _listening(link) as listener:
        DecodeLoop(engine, listener.accept).run()


@contextlib.contextmanager
def _listening(path: str) -> Iterator[Listener]:
    """At a path that is free, or that a decode engine which is no more has left."""
    with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
        Client(path, family="AF_UNIX").close()
        raise OSError(f"a decode engine listens at {path} already")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    before = os.umask(0o177)
    try:
        listener = Listener(path, family="AF_UNIX")
    finally:
        os.umask(before)
    with listener:
        yield listener


@contextlib.contextmanager
def decode_engine(arguments: Sequence[str]) -> Iterator[Reach]:
    """A decode engine in a process of its own, started with these flags. It ends when its line is
    lost, so also when we are killed.
    """
    near, far = multiprocessing.Pipe()
    flags = ["--role", "decode", "--link", f"{INHERITED}{far.fileno()}"]
    command = [sys.executable, "-m", "batchscope.engine", *arguments, *flags]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=[far.fileno()], process_group=0
    )
    far.close()
    try:
        yield once(near)
    finally:
        near.close()
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
