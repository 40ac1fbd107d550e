"""Who is in a ring folder: engines that listen, the dormant too, and rings, those of the dead too.

Called by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchscope.schemas.ring.control import (
    ABOUT_KEYS,
    LEVEL_OFF,
    is_leaving,
    read_about,
    read_level,
)
from batchscope.schemas.ring.folder import (
    CONTROL_SUFFIX,
    GROWING_SUFFIX,
    RING_SUFFIX,
    control_folder,
    is_held,
)
from batchscope.schemas.ring.layout import RingError
from batchscope.schemas.ring.reader import RingReader


@dataclass(frozen=True)
class Resident:
    """One life of one engine in a folder.

    `about` has the ABOUT_KEYS, `pid` (in the engine's own namespace) and `pid_ns`, unknown ones
    left out. `level` and `leaving` are what was asked for, None where the control file can't be
    read: then `problem` says why. `ring`: its file, None while there is none.
    """

    ring_uuid: str
    about: dict[str, Any]
    alive: bool
    level: int | None
    leaving: bool | None
    ring: Path | None
    growing: bool
    problem: str | None

    @property
    def state(self) -> str:
        """dormant, waking (asked, no ring yet), attached, leaving, gone, or unreadable."""
        if self.problem:
            return "unreadable"
        if not self.alive:
            return "gone"
        if self.leaving:
            return "leaving"
        if self.level == LEVEL_OFF:
            return "dormant"
        return "waking" if self.ring is None else "attached"


def roster(folder: Path) -> list[Resident]:
    """Everyone in the folder, the living first. A missing or unreadable folder is empty."""
    rings = {path.stem: path for path in _entries(folder, RING_SUFFIX)}
    controls = {path.stem: path for path in _entries(control_folder(folder), CONTROL_SUFFIX)}
    growing = {path.stem for path in _entries(folder, GROWING_SUFFIX)}
    found = [
        resident(folder, ring_uuid, ring=rings.get(ring_uuid), growing=ring_uuid in growing)
        for ring_uuid in sorted(rings | controls)
    ]
    return sorted(found, key=lambda one: not one.alive)


def resident(folder: Path, ring_uuid: str, *, ring: Path | None, growing: bool) -> Resident:
    """One of them, read now."""
    about, level, leaving, problem = _listening(folder, ring_uuid)
    said, ring_alive, unread = _recording(ring) if ring else ({}, False, None)
    control = control_folder(folder) / (ring_uuid + CONTROL_SUFFIX)
    return Resident(
        ring_uuid=ring_uuid,
        about={**said, **about},
        alive=ring_alive or is_held(control),
        level=level,
        leaving=leaving,
        ring=ring,
        growing=growing,
        problem=unread if ring and level is None else problem,
    )


def _listening(
    folder: Path, ring_uuid: str
) -> tuple[dict[str, Any], int | None, bool | None, str | None]:
    """(about, level, leaving, problem) by its control file."""
    try:
        level, leaving = read_level(folder, ring_uuid), is_leaving(folder, ring_uuid)
        return read_about(folder, ring_uuid), level, leaving, None
    except RingError as why:
        return {}, None, None, str(why)


def _recording(ring: Path) -> tuple[dict[str, Any], bool, str | None]:
    """(about, alive, problem) by its ring."""
    try:
        reader = RingReader(ring)
    except (OSError, RingError) as why:
        return {}, False, str(why)
    try:
        hello = reader.hello
        return {k: hello[k] for k in (*ABOUT_KEYS, "pid") if k in hello}, reader.alive(), None
    finally:
        reader.close()


def _entries(folder: Path, suffix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix)
    except OSError:
        return []
