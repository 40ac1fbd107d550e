"""Putting batchscope into a running process that has none: a script of ours is run inside it.

By Python 3.14's remote execution where both sides have it, else, asked for by --inject, by the
debugger's door (injecting.py). Called by attach.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from batchscope.exporter.cli import asking, engines, importable, injecting, processes
from batchscope.exporter.errors import BatchscopeError, ConfigError
from batchscope.schemas.ring import Resident, roster

Door = Callable[[int, Path], None]
"""Runs a script inside a process, at once or at its next safe point; BatchscopeError: why not."""

SCRIPT = """\
import os, sys
try:
    if {path!r} not in sys.path:
        sys.path.append({path!r})
    from batchscope.adapters import found
    found.attach_all({{**os.environ, "BATCHSCOPE_DIR": {folder!r}}})
finally:
    os.unlink({script!r})
"""
"""Dormant: the control word, not this script, switches the recording on."""

_NO_ENGINE = (b"multiprocessing.resource_tracker", b"VLLM::Worker")
"""In the command line of those processes of an engine's family in which nothing is scheduled."""


def enter(pid: int, folder: Path, args: argparse.Namespace) -> list[Resident]:
    """The engines of a process and its descendants, entered: dormant, of the folder's roster.

    ConfigError, BatchscopeError: one sentence of why there is none, and what to do instead.
    """
    door = injecting.inject if args.inject else _remote_execution(pid, folder)
    _must_be_welcome(pid)
    scripts = _sent(
        [one for one in (pid, *processes.descendants(pid)) if _may_schedule(one)], folder, door
    )
    seconds = max(args.wait, injecting.SCRIPT_S) if args.inject else args.wait
    deadline = time.monotonic() + seconds
    while any(script.exists() for script in scripts) and time.monotonic() < deadline:
        time.sleep(asking.POLL_S)
    if found := engines.matching(roster(folder), str(pid)):
        return found
    raise BatchscopeError(_why_none(pid, scripts, seconds))


def write_script(pid: int, folder: Path) -> Path:
    """The script as a file that the process can read. It removes itself: nothing else says when it
    has run.
    """
    descriptor, path = tempfile.mkstemp(prefix="batchscope-attach-", suffix=".py")
    reach = str(importable.folder(os.environ))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(SCRIPT.format(path=reach, folder=str(folder), script=path))
        os.fchmod(descriptor, 0o644)
        if os.geteuid() == 0:  # of a folder like /tmp only the owner may remove it
            os.fchown(descriptor, processes.owner(pid), -1)
    return Path(path)


def _remote_execution(pid: int, folder: Path) -> Door:
    execute: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    if execute is None:
        mine = ".".join(map(str, sys.version_info[:2]))
        raise ConfigError(
            f"no engine of process {pid} listens in {folder}: {engines.HOW_TO_LOAD};"
            f" entering a running process needs Python 3.14 on both sides, this is {mine},"
            " or --inject"
        )

    def enter_by_it(one: int, script: Path) -> None:
        try:
            execute(one, str(script))
        except (OSError, RuntimeError) as why:
            instead = f"{engines.HOW_TO_LOAD}, or --inject"
            raise BatchscopeError(f"process {one} lets nobody in ({why}): {instead}") from None

    return enter_by_it


def _must_be_welcome(pid: int) -> None:
    """ConfigError for a process that said no, or that would not find what we put before it."""
    try:
        refuses = processes.environment(pid).get("BATCHSCOPE") == "0"
    except OSError as why:
        raise BatchscopeError(f"process {pid} is not ours to enter: {why.strerror}") from None
    if refuses:
        raise ConfigError(f"process {pid} was started with BATCHSCOPE=0: it is left alone")
    needed = (importable.folder(os.environ), Path(tempfile.gettempdir()))
    if not all(processes.sees(pid, path) for path in needed):
        raise ConfigError(
            f"process {pid} has files of its own (a container?) and can't import batchscope from"
            f" here: {engines.HOW_TO_LOAD}"
        )


def _may_schedule(pid: int) -> bool:
    return processes.is_python(pid) and not any(
        word in processes.command_line(pid) for word in _NO_ENGINE
    )


def _sent(pids: Sequence[int], folder: Path, door: Door) -> list[Path]:
    """Scripts under way. The first refusal is raised where all refuse."""
    scripts: list[Path] = []
    refusals: list[BatchscopeError] = []
    for pid in pids:
        script = write_script(pid, folder)
        try:
            door(pid, script)
        except BatchscopeError as why:
            script.unlink(missing_ok=True)
            refusals.append(why)
        else:
            scripts.append(script)
    if refusals and not scripts:
        raise refusals[0]
    return scripts


def _why_none(pid: int, scripts: Sequence[Path], seconds: float) -> str:
    if not scripts:
        return f"process {pid} is no Python, and has started none"
    if any(script.exists() for script in scripts):
        return (
            f"process {pid} has not let us in for {seconds:g} s: it does with the next Python that"
            " it runs (an idle engine waits for a request); attach again then"
        )
    return f"process {pid} was entered and runs no engine that is known; what failed is in its log"
