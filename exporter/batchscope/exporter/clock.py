"""Wall clock of a ring's instants: from its own clock pairs alone, so that replays agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def hello_offset(hello: Mapping[str, Any]) -> int:
    """Unix - monotonic at attach, ns; 0 when the ring doesn't tell."""
    mono, unix = hello.get("mono_ns"), hello.get("unix_ns")
    return int(unix) - int(mono) if mono is not None and unix is not None else 0


class Offsets:
    """unix - monotonic, ns, at every position of a piece: that of the latest SEGMENT before it."""

    def __init__(self, before: int, segments: Any | None) -> None:
        self._pos = np.empty(0, np.int64) if segments is None else segments.pos
        self._values = np.array([before], np.int64)
        if segments is not None:
            pairs = segments.fields["unix_ns"] - segments.fields["mono_ns"]
            self._values = np.concatenate([self._values, pairs])

    def at(self, pos: npt.ArrayLike) -> Ints:
        """Offsets at these positions."""
        return self._values[np.searchsorted(self._pos, pos)]

    @property
    def last(self) -> int:
        """The offset after the piece."""
        return int(self._values[-1])
