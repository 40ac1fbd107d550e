"""What the doctor says, and where it looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One line. status: ok, note (nothing is broken), or fix (`fix` then says what helps)."""

    about: str
    status: str
    says: str
    fix: str = ""


@dataclass(frozen=True)
class Scene:
    """Where the doctor looks."""

    env: Mapping[str, str]
    folder: Path | None
    url: str
    mono: Callable[[], int] = time.monotonic_ns
    wall: Callable[[], int] = time.time_ns
