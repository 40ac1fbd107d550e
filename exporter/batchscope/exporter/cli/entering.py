"""Putting batchscope into a running process that has none, by Python 3.14's remote execution."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from batchscope.exporter.cli import engines, importable
from batchscope.exporter.errors import BatchscopeError, ConfigError

SCRIPT = """\
import os, sys
os.unlink({script!r})
if {path!r} not in sys.path:
    sys.path.append({path!r})
from batchscope.adapters import found
found.attach_all({{**os.environ, "BATCHSCOPE_DIR": {folder!r}}})
"""
"""Dormant: the control word, not this script, switches the recording on."""


def enter(pid: int, folder: Path) -> None:
    """Have the process run our script at its next safe point; BatchscopeError when it can't be."""
    execute: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    if execute is None:
        mine = ".".join(map(str, sys.version_info[:2]))
        raise ConfigError(
            f"no engine of process {pid} listens in {folder}: {engines.HOW_TO_LOAD};"
            f" entering a running process needs Python 3.14 on both sides, this is {mine}"
        )
    script = write_script(folder)
    try:
        execute(pid, str(script))
    except (OSError, RuntimeError) as why:
        script.unlink()
        raise BatchscopeError(f"process {pid} lets nobody in: {why}") from None


def write_script(folder: Path) -> Path:
    """The script as a file that the process can read. It removes itself: nothing else says when it
    has run.
    """
    descriptor, path = tempfile.mkstemp(prefix="batchscope-attach-", suffix=".py")
    reach = str(importable.folder(os.environ))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(SCRIPT.format(path=reach, folder=str(folder), script=path))
        os.fchmod(descriptor, 0o644)
    return Path(path)
