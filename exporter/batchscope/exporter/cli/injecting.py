"""Running a script inside a CPython below 3.14, which has no door for it: by the debugger's one.

A library (enter.c) is loaded by a thread of the engine that we stop for it, and takes the GIL like
any other thread. Called by entering.py.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from batchscope.exporter.cli import processes
from batchscope.exporter.errors import BatchscopeError, ConfigError

Attach = Callable[[int], AbstractContextManager[Any]]

WAITING = {
    7: "poll",
    23: "select",
    35: "nanosleep",
    43: "accept",
    45: "recvfrom",
    47: "recvmsg",
    230: "clock_nanosleep",
    232: "epoll_wait",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
}
"""System calls of x86-64 in which a thread sleeps and holds no lock of the allocator or the loader.

To load a library allocates memory: done by a thread that was stopped inside malloc it never ends.
Not futex: a thread may sleep there for the allocator's own lock.
"""
WAIT_S, LOOK_S = 5.0, 0.002
SCRIPT_S = 30.0
"""A script beside busy threads waits long for the GIL: 11 s were seen on a machine with a load of
six a core.
"""
_NOT_PERMITTED = -8
"""pyinjector's `ret_val` for a process that the system doesn't let us trace."""
SOURCE = Path(__file__).with_name("enter.c")
EXPRESSION = (
    "exec(compile(__import__('pathlib').Path({path!r}).read_text('utf-8'), {path!r}, 'exec'), {{}})"
)


def inject(pid: int, script: Path, *, seconds: float = WAIT_S) -> None:
    """Have the process run the script on a thread of its own. ConfigError when something is
    missing here, BatchscopeError when no thread of it can be stopped safely.
    """
    attach = _debugger()
    with tempfile.TemporaryDirectory(prefix="batchscope-inject-") as folder:
        Path(folder).chmod(0o755)
        library = build(script, Path(folder))
        deadline = time.monotonic() + seconds
        while not any(_entered(pid, tid, library, attach) for tid in waiting(pid)):
            if time.monotonic() > deadline:
                raise BatchscopeError(f"no thread of process {pid} sleeps: it is left alone")
            time.sleep(LOOK_S)


def build(script: Path, folder: Path) -> Path:
    """The library for one script, by the system's C compiler."""
    library = folder / "enter.so"
    expression = json.dumps(EXPRESSION.format(path=str(script)))
    command = ["cc", "-shared", "-fPIC", "-O1", f"-DEXPRESSION={expression}"]
    try:
        done = subprocess.run(
            [*command, "-o", library, SOURCE, "-ldl", "-lpthread"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError("--inject needs a C compiler: there is no cc on PATH") from None
    if done.returncode:
        raise ConfigError(f"cc can't build what --inject loads: {done.stderr.strip()[-200:]}")
    return library


def waiting(pid: int) -> Iterator[int]:
    """Threads of a process that sleep in one of the WAITING calls."""
    try:
        tids = sorted(int(entry.name) for entry in (processes.PROC / f"{pid}/task").iterdir())
    except OSError:
        raise BatchscopeError(f"process {pid} is gone, or not ours to look at") from None
    return (tid for tid in tids if is_waiting(pid, tid))


def is_waiting(pid: int, tid: int) -> bool:
    """Whether a thread is in one of the WAITING calls; one that runs says `running`."""
    try:
        number = (processes.PROC / f"{pid}/task/{tid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return False
    return number.isdigit() and int(number) in WAITING


def _entered(pid: int, tid: int, library: Path, attach: Attach) -> bool:
    """Stop a thread, look again, for it may have woken meanwhile, and load the library there."""
    try:
        with attach(tid) as door:
            if not is_waiting(pid, tid):
                return False
            door.inject(os.fsencode(library))
    except Exception as why:  # noqa: BLE001 - a foreign library's, whatever it raises
        raise BatchscopeError(f"process {pid} lets nobody in: {_said(why)}") from None
    return True


def _said(why: Exception) -> str:
    if getattr(why, "ret_val", None) == _NOT_PERMITTED:
        return "tracing it takes root or its own user, ptrace_scope 0, SYS_PTRACE in a container"
    return str(why).partition("\n")[0]


def _debugger() -> Attach:
    if platform.machine() != "x86_64":
        raise ConfigError(f"--inject is for x86-64 alone, this is {platform.machine()}")
    try:
        attach: Attach = import_module("pyinjector").attach
    except ImportError:
        raise ConfigError("--inject needs `pip install 'batchscope[inject]'`") from None
    return attach
