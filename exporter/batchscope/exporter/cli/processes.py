"""Processes by /proc: what a pid and its descendants are called in their own namespaces.

An engine's core is often a child of the process that a person sees, and may live in a container.
"""

from __future__ import annotations

from pathlib import Path

from batchscope.schemas.ring import pid_namespace

PROC = Path("/proc")


def exists(pid: int) -> bool:
    """Whether there is such a process, seen from here."""
    return (PROC / str(pid)).is_dir()


def family(pid: int) -> set[tuple[int, int]]:
    """(pid namespace, pid in it) of a process and all its descendants, as far as we may look."""
    children = _children()
    members, todo = {pid}, [pid]
    while todo:
        fresh = [child for child in children.get(todo.pop(), []) if child not in members]
        members.update(fresh)
        todo += fresh
    return {own for member in members if (own := _own_name(member)) is not None}


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
