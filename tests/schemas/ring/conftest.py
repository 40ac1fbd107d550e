"""Rings for tests: small, in a temporary folder, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from batchscope.schemas.ring import RingReader, RingWriter

SIZE = 256 << 10


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RingWriter]:
    ring = RingWriter(tmp_path / "rings", {"kind": "mini"}, size=SIZE)
    grow(ring)
    yield ring
    ring.close()


@pytest.fixture
def open_reader() -> Iterator[Callable[..., RingReader]]:
    opened: list[RingReader] = []

    def open_one(path: Path, **options: Any) -> RingReader:
        opened.append(RingReader(path, **options))
        return opened[-1]

    yield open_one
    for reader in opened:
        reader.close()


def grow(ring: RingWriter) -> None:
    for _ in range(16):
        if ring.grow():
            return
    raise AssertionError("not grown after 16 segments")
