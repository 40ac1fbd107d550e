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

    None where that can't be told: no such process, or not ours to look at.
    """
    try:
        named = environment(pid)
        inside = ring_folder(named) if named.get("BATCHSCOPE_DIR") else _default_of(pid)
        root = PROC / str(pid) / "root"
        return _from_here(root, inside) if inside and inside.is_absolute() else None
    except OSError:
        return None


def environment(pid: int) -> dict[str, str]:
    """The variables that it was started with; OSError where they are not ours to look at."""
    raw = (PROC / str(pid) / "environ").read_bytes().decode("utf-8", "replace")
    return dict(line.partition("=")[::2] for line in raw.split("\0"))


def owner(pid: int) -> int:
    """Its effective uid; OSError when there is no such process."""
    lines = (PROC / str(pid) / "status").read_text("utf-8", "replace").splitlines()
    return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))


def command_line(pid: int) -> bytes:
    """Its words, each ended by a NUL, or the title that it gave itself; empty when it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def is_python(pid: int) -> bool:
    """Whether its program or one of its libraries is a CPython."""
    try:
        maps = (PROC / str(pid) / "maps").read_text("utf-8", "replace")
    except OSError:
        return False
    files = {Path(line.split(maxsplit=5)[5]).name for line in maps.splitlines() if "/" in line}
    return any(name.startswith(("python3", "libpython3")) for name in files)


def sees(pid: int, path: Path) -> bool:
    """Whether a path names the same file there as here."""
    try:
        return path.samefile(PROC / str(pid) / "root" / path.relative_to("/"))
    except OSError:
        return False


def _from_here(root: Path, inside: Path) -> Path | None:
    """A process's folder under its plain name where that is the same one, else through its root.

    One that is still to be made counts where what it will be made in is seen alike from here.
    """
    seen = root / inside.relative_to("/")
    if seen.is_dir():
        return inside if inside.is_dir() and inside.samefile(seen) else seen
    above = next(each for each in inside.parents if each.is_dir())
    same = not inside.exists() and above.samefile(root / above.relative_to("/"))
    return inside if same else None


def _default_of(pid: int) -> Path:
    return Path(f"/dev/shm/batchscope-{owner(pid)}")  # noqa: S108


def family(pid: int) -> set[tuple[int, int]]:
    """(pid namespace, pid in it) of a process and all its descendants, as far as we may look."""
    members = [pid, *descendants(pid)]
    return {own for member in members if (own := _own_name(member)) is not None}


def descendants(pid: int) -> list[int]:
    """Its children, theirs and so on, as far as we may look; parents before their children."""
    children = _children()
    found, todo = [pid], [pid]
    while todo:
        fresh = [child for child in children.get(todo.pop(0), []) if child not in found]
        found += fresh
        todo += fresh
    return found[1:]


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
