"""The doctor's checks of the ring folder and the engines in it. None raises for what it finds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from batchscope.exporter.cli import engines, installed
from batchscope.exporter.cli.findings import Finding, Scene
from batchscope.exporter.cli.spoken import plural, size
from batchscope.schemas.ring import Resident, RingError, RingReader, roster
from batchscope.schemas.ring.folder import control_folder
from batchscope.schemas.ring.writer import LARGEST_RING, SMALLEST_RING


def folder(scene: Scene) -> Iterator[Finding]:
    """Where rings are, whether we may, and whether there is room."""
    where = scene.folder
    if where is None:
        cure = "set BATCHSCOPE_DIR to a folder in memory, for engine and exporter alike"
        yield Finding("folder", "fix", "there is no /dev/shm", cure)
        return
    yield _access(where)
    for there in [place for place in (where, where.parent) if _may(place, os.X_OK)][:1]:
        yield _memory(there, where)
        yield _room(there)


def residents(scene: Scene) -> Iterator[Finding]:
    """Engines in the folder, and what is left of the dead."""
    found = roster(scene.folder) if scene.folder else []
    alive = [one for one in found if one.alive]
    for one in alive:
        yield _resident(one)
        yield from _provided(one)
    if not alive:
        yield Finding("engine", "note", "none listens here", engines.HOW_TO_LOAD)
    dead = [one.ring for one in found if one.ring and not one.alive]
    if dead:
        rings = f"{plural(len(dead), 'ring')} of engines that are gone"
        yield Finding("engine", "note", rings, "`batchscope serve` stores what they hold")


def _access(where: Path) -> Finding:
    cure = "run as that user, or share it: BATCHSCOPE_GROUP in the engine's environment"
    try:
        seen = where.stat()
    except FileNotFoundError:
        return Finding("folder", "note", f"{where} is made by the first engine")
    except OSError as why:
        return Finding("folder", "fix", f"{where} can't be seen: {why.strerror}", cure)
    owner = f"uid {seen.st_uid}, mode {stat.S_IMODE(seen.st_mode):o}"
    if not _may(where, os.R_OK | os.X_OK):
        return Finding("folder", "fix", f"{where} can't be read ({owner})", cure)
    control = control_folder(where)
    if _may(control, os.F_OK) and not _may(control, os.W_OK | os.X_OK):
        says = f"{control} can't be written: attach and detach can't ask ({owner})"
        return Finding("folder", "fix", says, cure)
    return Finding("folder", "ok", f"{where} ({owner})")


def _may(path: Path, how: int) -> bool:
    return os.access(path, how, effective_ids=True)


def _memory(there: Path, where: Path) -> Finding:
    kind = file_system(there)
    if kind in ("tmpfs", "ramfs", None):
        return Finding("folder", "ok", f"in memory ({kind or 'file system unknown'})")
    cure = "a folder in memory: on disk, write-back of a ring is I/O on the engine's thread"
    return Finding("folder", "fix", f"{where} is on {kind}", cure)


def _room(there: Path) -> Finding:
    room = os.statvfs(there)
    free = room.f_bavail * room.f_frsize
    if free < SMALLEST_RING:
        cure = "enlarge it (docker run --shm-size=1g): an engine without room stays dormant"
        return Finding(
            "folder", "fix", f"{size(free)} free, a ring takes {size(SMALLEST_RING)}", cure
        )
    ring = max(SMALLEST_RING, min(LARGEST_RING, free // 4))
    cure = "" if ring == LARGEST_RING else f"with {size(4 * LARGEST_RING)} free it is a full one"
    status = "ok" if ring == LARGEST_RING else "note"
    return Finding("folder", status, f"{size(free)} free: a new ring takes {size(ring)}", cure)


def file_system(path: Path, *, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Type of the file system that holds a folder, None where the system doesn't say."""
    lines = [line.split() for line in text_of(mounts).splitlines()]
    found = {Path(line[1].replace("\\040", " ")): line[2] for line in lines if len(line) > 2}
    real = path.resolve()
    return next((found[at] for at in (real, *real.parents) if at in found), None)


def _resident(one: Resident) -> Finding:
    if one.problem:
        cure = "run as the engine's user, or share the folder by BATCHSCOPE_GROUP"
        return Finding("engine", "fix", one.problem, cure)
    dormant = one.state == "dormant"
    level = "" if dormant else f", {engines.LEVEL_NAMES.get(one.level or 0, 'members')}"
    version_ = f"{one.about.get('kind', 'unknown')} {one.about.get('version', '')}".strip()
    cure = "`batchscope attach` switches it on" if dormant else ""
    return Finding("engine", "ok", f"{engines.name(one)}, {version_}: {one.state}{level}", cure)


def _provided(one: Resident) -> Iterator[Finding]:
    """What a recording engine said that it lets us see, missing seams included."""
    hello = _hello(one)
    fields = {k: v for k, v in hello.items() if not k.startswith("seam:")}
    missing = [name.removeprefix("seam:") for name in hello if name.startswith("seam:")]
    if fields:
        yield Finding("provides", "ok", f"{engines.name(one)}: {installed.provided(fields)}")
    if missing:
        says = f"{engines.name(one)} has no {', '.join(missing)}"
        yield Finding("seams", "fix", says, "a batchscope that knows this version")


def _hello(one: Resident) -> dict[str, str]:
    try:
        reader = RingReader(one.ring) if one.ring else None
    except (OSError, RingError):
        return {}
    if reader is None:
        return {}
    try:
        return dict(reader.hello.get("provides") or {})
    finally:
        reader.close()


def text_of(path: Path) -> str:
    """A small file of the system; "" where it can't be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
