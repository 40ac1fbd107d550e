"""The demo's folder, and the end of those that killed demos left behind. Called by demo and serve.

Whose demo is alive is told by a lock, not by a pid: containers share the memory, not the pids.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from batchscope.schemas.ring.folder import create, drop, is_held

PREFIX = "batchscope-demo-"
LOCK = "alive.lock"


@contextmanager
def workspace() -> Iterator[Path]:
    """A folder in memory for rings, logs and the store of this run alone."""
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_memory()))
    lock = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        drop(lock)


def sweep(memory: Path | None = None) -> list[Path]:
    """Remove this user's folders of demos that are dead; returns what went. Never raises."""
    found: list[Path] = []
    with suppress(OSError):
        found += [path for path in (memory or _memory()).glob(PREFIX + "*") if _is_left(path)]
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return found


def _memory() -> Path:
    shared = Path("/dev/shm")  # noqa: S108
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


def _locked(folder: Path) -> int:
    """Its lock, taken before it has the name that `sweep` looks for."""
    made = folder / f"{LOCK}.new"
    descriptor = create(made, mode=0o600)
    made.rename(folder / LOCK)
    return descriptor


def _is_left(folder: Path) -> bool:
    """A folder of ours with a lock that nobody holds; one that is being made has none yet."""
    lock = folder / LOCK
    try:
        ours = folder.lstat().st_uid == lock.lstat().st_uid == os.geteuid()
    except OSError:
        return False
    return ours and folder.is_dir() and not folder.is_symlink() and not is_held(lock)
