"""The fold's state as bytes: one JSON head, then the raw bytes of every array. No pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
_HEAD = Struct("<II")


def pack(version: int, *, head: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Bytes that unpack() understands."""
    shapes = {name: len(array) for name, array in arrays.items()}
    text = json.dumps({"head": head, "arrays": shapes}, separators=(",", ":")).encode()
    parts = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return b"".join([_HEAD.pack(version, len(text)), text, *parts])


def unpack(
    blob: bytes, *, version: int, dtypes: Mapping[str, np.dtype[Any]]
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """(head, arrays). Raises ValueError when the bytes are of another version or cut short."""
    found, length = _HEAD.unpack_from(blob)
    if found != version:
        raise ValueError(f"state of fold version {found}, this is {version}")
    start = _HEAD.size + length
    text = json.loads(blob[_HEAD.size : start])
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, count in text["arrays"].items():
        dtype = dtypes[name]
        arrays[name] = np.frombuffer(blob, dtype, count, start).copy()
        start += count * dtype.itemsize
    return text["head"], arrays
