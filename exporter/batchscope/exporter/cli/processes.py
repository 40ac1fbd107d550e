"""Processes by /proc: what a pid and its descendants are called in their own namespaces.

An engine's core is often a child of the process that a person sees, and may live in a container.
"""

from __future__ import annotations

from pathlib import Path

from batchscope.schemas.ring import pid_namespace, ring_folder

PROC = Path("/proc")


def exists(pid: int) -> bool:
    """Whether there is such a process, seen from here."""
    return (PROC / str(pid)).is_dir()


def ring_folder_of(pid: int) -> Path | None:
    """Where that process has its rings, seen from here: another user's folder, or a container's.

    None where there is none, or where it is not ours to look at.
    """
    process = PROC / str(pid)
    try:
        raw = (process / "environ").read_bytes().decode("utf-8", "replace")
        named = dict(line.partition("=")[::2] for line in raw.split("\0"))
        inside = ring_folder(named) if named.get("BATCHSCOPE_DIR") else _default_of(process)
        return _from_here(process / "root", inside) if inside and inside.is_absolute() else None
    except (OSError, StopIteration):
        return None


def _from_here(root: Path, inside: Path) -> Path | None:
    """A process's folder under its plain name where that is the same one, else through its root."""
    seen = root / inside.relative_to("/")
    if not seen.is_dir():
        return None
    return inside if inside.is_dir() and inside.samefile(seen) else seen


def _default_of(process: Path) -> Path:
    lines = (process / "status").read_text("utf-8", "replace").splitlines()
    uid = next(line.split()[2] for line in lines if line.startswith("Uid:"))
    return Path(f"/dev/shm/batchscope-{uid}")  # noqa: S108


def family(pid: int) -> set[tuple[int, int]]:
    """(pid namespace, pid in it) of a process and all its descendants, as far as we may look."""
    children = _children()
    members, todo = {pid}, [pid]
    while todo:
        fresh = [child for child in children.get(todo.pop(), []) if child not in members]
        members.update(fresh)
        todo += fresh
    return {own for member in members if (own := _own_name(member)) is not None}


def children_of(pid: int) -> list[int]:
    """Processes that it started and that are still there."""
    return _children().get(pid, [])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            found.setdefault(parent, []).append(int(entry.name))
    return found


def _parent(entry: Path) -> int | None:
    """The fourth field of stat; the second, a name in parentheses, may hold anything."""
    try:
        return int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _own_name(pid: int) -> tuple[int, int] | None:
    """Its namespace and its pid there; None for a process that is gone or not ours to look at."""
    namespace = pid_namespace(str(pid))
    try:
        status = (PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return None
    pids = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
    return None if namespace is None else (namespace, int(pids[0]) if pids else pid)
