"""A ring as it is now, kept in a file: the flight recorder's tape.

A snapshot is a zip of `snapshot.json` (who, when, how much) and the ring itself, older segments
left empty. The unpacked ring is one that any reader of rings takes, `batchscope serve` included.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchscope.schemas.ring.folder import RING_SUFFIX, let_go, open_existing
from batchscope.schemas.ring.layout import HEADER_BYTES, RingFormatError
from batchscope.schemas.ring.reader import RingReader

FORMAT = 1
ABOUT = "snapshot.json"
MOST_BYTES = 1 << 30
MOST_SEGMENTS = 4096
NEWEST = 2**63 - 1
"""An instant after every segment's: seek to the last one."""
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Frozen:
    """A ring's bytes, and what is known about the moment they were taken."""

    ring_uuid: str
    data: bytes
    about: dict[str, Any]


def freeze(path: Path, *, seconds: float, wall: Callable[[], int] = time.time_ns) -> Frozen:
    """Copy the segments of the last `seconds` of a ring: counted from now for a living engine, from
    its newest segment for a dead one. RingError, OSError as opening it.

    The writer goes on meanwhile: a record that was torn by that does not validate.
    """
    reader = RingReader(path)
    try:
        now, alive = wall(), reader.alive()
        end = now if alive else reader.newest_unix_ns()
        data = _copy(path, reader, since_unix_ns=end - round(seconds * _NS_PER_S))
        about = {"format": FORMAT, "taken_unix_ns": now, "alive": alive, "hello": reader.hello}
        return Frozen(reader.ring_uuid, data, about | {"seconds": seconds})
    finally:
        reader.close()


def save(frozen: Frozen, target: Path) -> None:
    """Write the file, for its owner alone. OSError, and no file; FileExistsError: none is replaced.

    A snapshot may hold request ids in plain, as the ring does.
    """
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with (
            os.fdopen(descriptor, "r+b") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        ):
            packed.writestr(ABOUT, json.dumps(frozen.about, default=str))
            packed.writestr(frozen.ring_uuid + RING_SUFFIX, frozen.data)
    except OSError:
        target.unlink()
        raise


def load(source: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Unpack into a folder: (the ring's path, what is known). RingFormatError, OSError."""
    try:
        with zipfile.ZipFile(source) as file:
            about = json.loads(file.read(ABOUT))
            ring = folder / _sound(file)
            ring.write_bytes(file.read(ring.name))
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError):
        raise RingFormatError(f"{source} is not a snapshot of a ring") from None
    return ring, about


def _sound(file: zipfile.ZipFile) -> str:
    """Name of the one ring in it; ValueError for what we would not have written."""
    (info,) = (i for i in file.infolist() if i.filename.endswith(RING_SUFFIX))
    if "/" in info.filename or info.file_size > MOST_BYTES:
        raise ValueError(info.filename)
    return info.filename


def _copy(path: Path, reader: RingReader, *, since_unix_ns: int) -> bytes:
    """The header first, so that its hints are never ahead of the records copied after it."""
    fd = open_existing(path, os.O_RDONLY)
    try:
        data = bytearray(os.fstat(fd).st_size)
        data[:HEADER_BYTES] = os.pread(fd, HEADER_BYTES, 0)
        segment = reader.segment_bytes
        count = (len(data) - HEADER_BYTES) // segment
        for number in _wanted(reader, since_unix_ns):
            at = HEADER_BYTES + number % count * segment
            data[at : at + segment] = os.pread(fd, segment, at)
        return bytes(data)
    finally:
        let_go(fd)


def _wanted(reader: RingReader, since_unix_ns: int) -> Iterator[int]:
    """Segments from an instant on, counted over all laps: those that the writer opens meanwhile,
    too, but never the slot after the newest, which still holds one of the lap before.
    """
    number = _segment_at(reader, since_unix_ns)
    stop = number + MOST_SEGMENTS
    while number <= _segment_at(reader, NEWEST) and number < stop:
        yield number
        number += 1


def _segment_at(reader: RingReader, unix_ns: int) -> int:
    reader.seek(unix_ns=unix_ns)
    return reader.position[1] // reader.segment_bytes
