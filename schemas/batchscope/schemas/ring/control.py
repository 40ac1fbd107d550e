"""The control file: one page that exporter and CLI write and the engine only reads.

Words: magic, what is asked for; from byte 64 on who the engine is, as JSON up to a NUL: a dormant
engine has no ring that says so. The engine holds its lock for life, dormant or not.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from batchscope.schemas.ring.folder import (
    CONTROL_SUFFIX,
    control_folder,
    create,
    drop,
    is_shared,
    let_go,
    open_existing,
    prepare,
)
from batchscope.schemas.ring.layout import RingError, RingFormatError, RingUnavailable

LEVEL_OFF = 0
LEVEL_ITERATIONS = 1
LEVEL_MEMBERS = 2
LEVEL_LEAVE = 255
"""Not a detail: the adapter is to restore the engine and leave. What is asked last holds."""

_PAGE = 4096
_MAGIC = int.from_bytes(b"BSCPCTRL", "little")
_WORD = Struct("<Q")
LEVEL_BYTE = 8
"""Where in the page the level stands: the second word, of which the engine reads this byte."""

ABOUT_KEYS = ("kind", "engine", "version", "model_name", "role", "dp_rank", "adapter_version")
"""What of HELLO the page repeats; `pid` and `pid_ns` (inode of its namespace) are added."""
_ABOUT_BYTE = 64
_MOST_TEXT = 120
"""Characters of one text: seven of them, four bytes each, still fit the page."""


class Control:
    """The engine's side: a read of mapped memory per iteration, no call into the system."""

    def __init__(self, fd: int, path: Path) -> None:
        self.path = path
        self._fd = fd
        self.page = mmap.mmap(fd, _PAGE, prot=mmap.PROT_READ)
        """[LEVEL_BYTE] is what is asked for, read where a call is too dear."""

    @classmethod
    def create(
        cls,
        folder: Path,
        ring_uuid: str,
        *,
        level: int = LEVEL_MEMBERS,
        group: str | None = None,
        hello: Mapping[str, Any] | None = None,
    ) -> Control:
        """The control file of a ring that exists or is still to come, or RingUnavailable.

        `hello`: the engine's own; the page names it by its ABOUT_KEYS.
        """
        path = _path(folder, ring_uuid)
        try:
            prepare(folder, group=group)
            fd = create(path, mode=0o660 if is_shared(folder) else 0o600)
            return cls(_fill(fd, path, level, about_of(hello or {})), path)
        except OSError as why:
            raise RingUnavailable(f"no control file in {folder}: {why.strerror}") from why

    def level(self) -> int:
        """0 off, 1 iterations, 2 members; what a newer writer calls more is members."""
        return _level(self.page[LEVEL_BYTE])

    def detach_requested(self) -> bool:
        """Whether somebody asked the adapter to leave."""
        return self.page[LEVEL_BYTE] == LEVEL_LEAVE

    def close(self, *, unlink: bool = False) -> None:
        """Give the file up; afterwards neither question may be asked."""
        self.page.close()
        drop(self._fd)
        if unlink:
            self.path.unlink(missing_ok=True)


def set_level(folder: Path, ring_uuid: str, level: int) -> None:
    """Ask the engine for a detail level; it takes effect with its next iteration."""
    if level not in (LEVEL_OFF, LEVEL_ITERATIONS, LEVEL_MEMBERS):
        raise ValueError(f"no such detail level: {level}")
    _ask(folder, ring_uuid, level)


def request_detach(folder: Path, ring_uuid: str) -> None:
    """Ask the adapter to restore the engine and leave."""
    _ask(folder, ring_uuid, LEVEL_LEAVE)


def read_level(folder: Path, ring_uuid: str) -> int:
    """The level asked for last; RingError when there is no such control file."""
    return _level(_asked(folder, ring_uuid))


def read_about(folder: Path, ring_uuid: str) -> dict[str, Any]:
    """Who listens there, {} where the page doesn't say; RingError as `read_level`."""
    fd = _open(folder, ring_uuid, os.O_RDONLY)
    try:
        text, _, _ = os.pread(fd, _PAGE - _ABOUT_BYTE, _ABOUT_BYTE).partition(b"\0")
        about = json.loads(text or b"{}")
    except ValueError:
        return {}
    finally:
        let_go(fd)
    return about if isinstance(about, dict) else {}


def is_leaving(folder: Path, ring_uuid: str) -> bool:
    """Whether a detach was asked for; RingError as `read_level`."""
    return _asked(folder, ring_uuid) == LEVEL_LEAVE


def about_of(hello: Mapping[str, Any]) -> dict[str, Any]:
    """An engine as the page has it: texts are cut, so that all of it always fits."""
    said = {key: hello[key] for key in ABOUT_KEYS if hello.get(key) is not None}
    short = {key: v if isinstance(v, int) else _printable(v) for key, v in said.items()}
    return short | {"pid": os.getpid(), "pid_ns": pid_namespace("self")}


def _printable(value: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(value)[:_MOST_TEXT])


def pid_namespace(process: str) -> int | None:
    """Inode of a process's pid namespace; None where it can't be read."""
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return None


def _fill(fd: int, path: Path, level: int, about: Mapping[str, Any]) -> int:
    words = (_WORD.pack(_MAGIC) + _WORD.pack(level)).ljust(_ABOUT_BYTE, b"\0")
    try:
        os.posix_fallocate(fd, 0, _PAGE)
        text = json.dumps(about, separators=(",", ":"), ensure_ascii=False)
        os.pwrite(fd, words + text.encode(), 0)
    except OSError:
        drop(fd)
        path.unlink()
        raise
    return fd


def _path(folder: Path, ring_uuid: str) -> Path:
    return control_folder(folder) / (ring_uuid + CONTROL_SUFFIX)


def _level(asked: int) -> int:
    return LEVEL_OFF if asked == LEVEL_LEAVE else min(asked, LEVEL_MEMBERS)


def _ask(folder: Path, ring_uuid: str, level: int) -> None:
    fd = _open(folder, ring_uuid, os.O_RDWR)
    try:
        os.pwrite(fd, _WORD.pack(level), LEVEL_BYTE)
    finally:
        let_go(fd)


def _asked(folder: Path, ring_uuid: str) -> int:
    fd = _open(folder, ring_uuid, os.O_RDONLY)
    try:
        return os.pread(fd, 1, LEVEL_BYTE)[0]
    finally:
        let_go(fd)


def _open(folder: Path, ring_uuid: str, flags: int) -> int:
    path = _path(folder, ring_uuid)
    try:
        fd = open_existing(path, flags)
    except OSError as why:
        raise RingError(f"no engine listens at {path}: {why.strerror}") from why
    head = os.pread(fd, _WORD.size, 0)
    if os.fstat(fd).st_size != _PAGE or head != _WORD.pack(_MAGIC):
        let_go(fd)
        raise RingFormatError(f"{path} is not a control file")
    return fd
