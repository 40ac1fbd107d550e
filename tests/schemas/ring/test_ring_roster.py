"""Who is in a folder: the dormant by their control file, the others by their ring, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.schemas.ring.conftest import SIZE, grow

from batchscope.schemas.ring import (
    LEVEL_MEMBERS,
    LEVEL_OFF,
    Control,
    Resident,
    RingWriter,
    request_detach,
    roster,
    set_level,
)

HELLO = {"kind": "mini", "engine": "one", "role": "both", "dp_rank": 0, "adapter_version": "0"}


def only(folder: Path) -> Resident:
    (found,) = roster(folder)
    return found


def test_an_empty_or_missing_folder_has_nobody(tmp_path: Path) -> None:
    assert roster(tmp_path) == []
    assert roster(tmp_path / "nowhere") == []


def test_an_engine_is_followed_from_dormant_to_gone(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, HELLO, size=SIZE)
    control = Control.create(tmp_path, ring.ring_uuid, level=LEVEL_OFF, hello=HELLO)
    assert (only(tmp_path).state, only(tmp_path).about["engine"]) == ("dormant", "one")
    set_level(tmp_path, ring.ring_uuid, LEVEL_MEMBERS)
    ring.grow()
    assert (only(tmp_path).state, only(tmp_path).growing) == ("waking", True)
    grow(ring)
    assert (only(tmp_path).state, only(tmp_path).growing) == ("attached", False)
    request_detach(tmp_path, ring.ring_uuid)
    assert only(tmp_path).state == "leaving"
    control.close()
    ring.close()
    gone = only(tmp_path)
    assert (gone.state, gone.alive, gone.about["pid"]) == ("gone", False, os.getpid())


def test_the_living_come_first(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        control = Control.create(tmp_path, name * 4, hello=HELLO | {"engine": name})
        if name == "dead":
            control.close()
    assert [one.about["engine"] for one in roster(tmp_path)] == ["alive", "dead"]
    control.close()


def test_a_ring_without_its_control_file_is_named_by_its_hello(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, HELLO, size=SIZE)
    grow(ring)
    found = only(tmp_path)
    assert (found.state, found.level, found.problem) == ("attached", None, None)
    assert found.about == HELLO | {"pid": os.getpid()}
    ring.close()


def test_what_is_no_control_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "ctl").mkdir()
    (tmp_path / "ctl" / "abcd.ctl").write_bytes(b"nonsense")
    found = only(tmp_path)
    assert (found.state, found.alive) == ("unreadable", False)
    assert found.problem is not None
    assert "is not a control file" in found.problem


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that others may enter; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="batchscope-roster-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.mark.skipif(os.geteuid() != 0, reason="being someone else needs root")
def test_an_engine_of_another_user_is_seen_but_not_read(open_folder: Path) -> None:
    control = Control.create(open_folder, "ab" * 16, hello=HELLO)
    (open_folder / "ctl").chmod(0o755)
    os.seteuid(65532)
    try:
        found = only(open_folder)
    finally:
        os.seteuid(0)
        control.close()
    assert (found.state, found.about, found.level) == ("unreadable", {}, None)
    assert found.problem is not None
    assert "Permission denied" in found.problem
