"""A folder for PYTHONPATH in which another interpreter finds batchscope, and nothing else.

Our own site-packages would do as well, and would shadow half of the other environment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from importlib.metadata import distribution, version
from pathlib import Path

PARTS = ("schemas", "adapters", "engine")
"""What may be imported inside an engine, and what a process made of the bundled one needs."""
_METADATA = ("METADATA", "entry_points.txt")


def folder(env: Mapping[str, str]) -> Path:
    """The folder, made when it isn't there yet: links to this installation, and its entry points.

    In the user's cache, or in a temporary folder where that can't be written.
    """
    parts = {name: _location(name) for name in PARTS}
    told = {name: distribution("batchscope").read_text(name) or "" for name in _METADATA}
    key = sha256(repr((sorted(parts.items()), told)).encode()).hexdigest()[:12]
    home = env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "~").expanduser() / ".cache"
    target = Path(home) / "batchscope" / f"import-{key}"
    return target if _is_whole(target) else _placed(target, parts, told)


def _location(name: str) -> Path:
    return Path(next(iter(import_module(f"batchscope.{name}").__path__)))


def _is_whole(target: Path) -> bool:
    return all((target / "batchscope" / name / "__init__.py").is_file() for name in PARTS)


def _placed(target: Path, parts: Mapping[str, Path], told: Mapping[str, str]) -> Path:
    """Built aside and renamed: two commands at once both find it whole."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        built = Path(tempfile.mkdtemp(prefix=".import-", dir=target.parent))
    except OSError:
        built = Path(tempfile.mkdtemp(prefix="batchscope-import-"))
    _fill(built, parts, told)
    built.chmod(0o755)
    try:
        os.rename(built, target)
    except OSError:
        return target if _is_whole(target) else built
    return target


def _fill(built: Path, parts: Mapping[str, Path], told: Mapping[str, str]) -> None:
    (built / "batchscope").mkdir()
    for name, location in parts.items():
        (built / "batchscope" / name).symlink_to(location)
    metadata = built / f"batchscope-{version('batchscope')}.dist-info"
    metadata.mkdir()
    for name, text in told.items():
        (metadata / name).write_text(text, "utf-8")
