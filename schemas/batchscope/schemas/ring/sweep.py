"""What an engine removes when it starts: files of the dead that no exporter ever came for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from batchscope.schemas.ring.folder import (
    CONTROL_SUFFIX,
    GROWING_SUFFIX,
    RING_SUFFIX,
    control_folder,
    is_locked,
    let_go,
    open_existing,
    unlink,
)
from batchscope.schemas.ring.layout import RingError
from batchscope.schemas.ring.reader import RingReader

DAY_NS = 86_400 * 10**9
_OURS = {RING_SUFFIX, GROWING_SUFFIX, CONTROL_SUFFIX}


def sweep(folder: Path, *, wall: Callable[[], int] = time.time_ns) -> list[Path]:
    """Remove rings and control files that are dead and older than a day; returns what went."""
    now = wall()
    seen = [*_entries(folder), *_entries(control_folder(folder))]
    return [path for path in seen if _is_stale(path, now) and unlink(path)]


def _entries(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix in _OURS]
    except OSError:
        return []


def _is_stale(path: Path, now_ns: int) -> bool:
    try:
        fd = open_existing(path, os.O_RDONLY)
    except (OSError, RingError):
        return False
    try:
        touched = max(os.fstat(fd).st_mtime_ns, _last_sign(path))
        return now_ns - touched > DAY_NS and not is_locked(fd)
    finally:
        let_go(fd)


def _last_sign(path: Path) -> int:
    """Newest clock pair of a ring: writes to a mapped file of tmpfs need not move its mtime."""
    if path.suffix != RING_SUFFIX:
        return 0
    try:
        reader = RingReader(path)
    except (OSError, RingError):
        return 0
    try:
        return reader.newest_unix_ns()
    finally:
        reader.close()
