"""The folder of rings: where it is, who may enter, who is alive in it, and what is swept out.

Liveness is a POSIX record lock: it ends with the process, however that ends, and forked workers
don't hold it. It also ends when the process closes *any* descriptor of that file: hence `let_go`.
"""

from __future__ import annotations

import fcntl
import grp
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from batchscope.schemas.ring.layout import RingError, RingLocked, RingUnavailable

RING_SUFFIX = ".ring"
GROWING_SUFFIX = ".growing"
CONTROL_SUFFIX = ".ctl"

ASKING_S = 0.5
"""Seen: of 20,000 new files 3 were asked about between their making and their lock."""

_held: dict[tuple[int, int, int], list[int]] = {}
"""(pid, device, inode) of a locked file -> descriptors that stay open as long as the lock."""


def ring_folder(env: Mapping[str, str]) -> Path | None:
    """BATCHSCOPE_DIR, else this user's folder in shared memory, else None: then there is no ring.

    Never a folder on disk by default: write-back of a mapped file is I/O on the engine's thread.
    """
    if chosen := env.get("BATCHSCOPE_DIR"):
        return Path(chosen)
    memory = Path("/dev/shm")  # noqa: S108
    return memory / f"batchscope-{os.getuid()}" if memory.is_dir() else None


def control_folder(folder: Path) -> Path:
    """Where exporter and CLI may write: apart, so that a sidecar can mount the rings read-only."""
    return folder / "ctl"


def list_rings(folder: Path) -> list[Path]:
    """Complete rings of a folder, by name. A missing or unreadable folder has none."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == RING_SUFFIX)
    except OSError:
        return []


def prepare(folder: Path, *, group: str | None) -> None:
    """Make the folder and its ctl/ when missing; RingUnavailable when it is not safely ours.

    Private (0700) unless `group` is named or the folder is setgid: then the group reads the rings
    and writes ctl/.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _make(folder, group=group, mode=0o2750)
    shared = is_shared(folder)
    inherited = str(folder.stat().st_gid) if shared else None
    _make(control_folder(folder), group=inherited, mode=0o2770)


def is_shared(folder: Path) -> bool:
    """Whether the folder's group may read what lies in it (setgid bit)."""
    return bool(folder.stat().st_mode & stat.S_ISGID)


def _make(folder: Path, *, group: str | None, mode: int) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        _must_be_ours(folder)
    if group is not None and folder.stat().st_uid == os.geteuid():
        os.chown(folder, -1, _gid(group))
        os.chmod(folder, mode)


def _must_be_ours(folder: Path) -> None:
    seen = os.lstat(folder)
    if not stat.S_ISDIR(seen.st_mode):
        raise RingUnavailable(f"{folder} is not a folder (links are not followed)")
    if seen.st_uid not in (0, os.geteuid()) and not seen.st_mode & stat.S_ISGID:
        raise RingUnavailable(f"{folder} belongs to uid {seen.st_uid}")


def _gid(group: str) -> int:
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise RingUnavailable(f"BATCHSCOPE_GROUP names no group: {group}") from None


def create(path: Path, *, mode: int) -> int:
    """Descriptor of a new file that this process locks for life. OSError as the system says it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        os.fchmod(fd, mode)  # open() takes the umask off
        hold(fd)
    except OSError:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def open_existing(path: Path, flags: int) -> int:
    """Open a regular file that exists, following no link."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RingError(f"{path} is not a regular file")
    return fd


def hold(fd: int) -> None:
    """Lock the file for as long as this process lives (or calls `drop`). OSError when another has
    it for longer than who only asks: that takes the lock for a moment, too.
    """
    end = time.monotonic() + ASKING_S
    while not _locks(fd, last=time.monotonic() > end):
        time.sleep(0.001)
    _held[_identity(fd)] = []


def _locks(fd: int, *, last: bool) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES
        if last:
            raise
        return False
    return True


def drop(fd: int) -> None:
    """End of `hold`: close its descriptor and those that waited for it."""
    for waiting in _held.pop(_identity(fd), []):
        os.close(waiting)
    os.close(fd)


def let_go(fd: int) -> None:
    """Close a descriptor, unless that would drop a lock of this very process: then later."""
    if (mine := _held.get(_identity(fd))) is None:
        os.close(fd)
    else:
        mine.append(fd)


def is_locked(fd: int) -> bool:
    """Whether a living process holds the file; a descriptor for reading suffices to ask."""
    if _identity(fd) in _held:
        return True
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return False


def is_held(path: Path) -> bool:
    """The same of a path; a file that isn't there or can't be opened is held by nobody we see."""
    try:
        fd = open_existing(path, os.O_RDONLY)
    except (OSError, RingError):
        return False
    try:
        return is_locked(fd)
    finally:
        let_go(fd)


def _identity(fd: int) -> tuple[int, int, int]:
    seen = os.fstat(fd)
    return os.getpid(), seen.st_dev, seen.st_ino  # a forked child holds nothing


def lock_exporter(folder: Path) -> int:
    """Become the folder's one exporter until the process ends; RingLocked when there is one.

    Makes the folder when no engine has yet. OSError or RingUnavailable when that can't be.
    """
    if not control_folder(folder).is_dir():
        prepare(folder, group=None)
    path = control_folder(folder) / "exporter.lock"
    mode = 0o660 if is_shared(folder) else 0o600
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        if _identity(fd) in _held:
            raise BlockingIOError
        hold(fd)
    except OSError as error:
        let_go(fd)
        raise _not_ours(folder, error) from None
    return fd


def _not_ours(folder: Path, error: OSError) -> RingError:
    """Why a lock could not be had: somebody holds it, or the file system has none."""
    if isinstance(error, BlockingIOError | PermissionError):  # POSIX allows EAGAIN and EACCES
        return RingLocked(f"another exporter reads {folder}: stop it or use another folder")
    return RingUnavailable(f"can't lock {folder}: {error.strerror or error}")


def retire(path: Path) -> bool:
    """Remove a dead, drained ring and its control file where we may; True when the ring is gone.

    Safe to repeat. Where we may not (a read-only mount) the engine's next start sweeps it.
    """
    control = control_folder(path.parent) / (path.stem + CONTROL_SUFFIX)
    gone = unlink(path)
    unlink(control)
    return gone


def unlink(path: Path) -> bool:
    """Remove a file if it is there; False when we may not."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
