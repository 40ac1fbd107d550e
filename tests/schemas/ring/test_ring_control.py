"""The control file: what the CLI says and the engine hears."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchscope.schemas.ring import (
    LEVEL_ITERATIONS,
    LEVEL_MEMBERS,
    LEVEL_OFF,
    Control,
    RingError,
    RingUnavailable,
    read_level,
    request_detach,
    set_level,
)

UUID = "ab" * 16


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    made = Control.create(tmp_path, UUID, level=LEVEL_OFF)
    yield made
    made.close()


def test_a_level_set_elsewhere_is_heard_at_once(control: Control, tmp_path: Path) -> None:
    assert control.level() == LEVEL_OFF
    for level in (LEVEL_MEMBERS, LEVEL_ITERATIONS, LEVEL_OFF):
        set_level(tmp_path, UUID, level)
        assert control.level() == level == read_level(tmp_path, UUID)


def test_a_detach_request_is_heard(control: Control, tmp_path: Path) -> None:
    assert not control.detach_requested()
    request_detach(tmp_path, UUID)
    assert control.detach_requested()
    assert control.level() == LEVEL_OFF


def test_a_level_that_does_not_exist_is_refused(control: Control, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such detail level: 3"):
        set_level(tmp_path, UUID, 3)


def test_a_newer_writers_level_counts_as_members(control: Control) -> None:
    with control.path.open("r+b") as file:
        file.seek(8)
        file.write((7).to_bytes(8, "little"))
    assert control.level() == LEVEL_MEMBERS


def test_there_is_nobody_to_tell_without_a_control_file(tmp_path: Path) -> None:
    with pytest.raises(RingError, match="no engine listens"):
        set_level(tmp_path, UUID, LEVEL_OFF)
    (tmp_path / "ctl").mkdir()
    (tmp_path / "ctl" / f"{UUID}.ctl").write_bytes(bytes(4096))
    with pytest.raises(RingError, match="is not a control file"):
        request_detach(tmp_path, UUID)
    fifo = tmp_path / "ctl" / f"{'cd' * 16}.ctl"
    os.mkfifo(fifo)
    with pytest.raises(RingError):
        read_level(tmp_path, "cd" * 16)


def test_a_control_file_is_private_and_one_page(control: Control) -> None:
    seen = control.path.stat()
    assert stat.S_IMODE(seen.st_mode) == 0o600
    assert seen.st_size == 4096


def test_a_control_file_that_exists_is_not_taken_over(control: Control, tmp_path: Path) -> None:
    with pytest.raises(RingUnavailable, match="File exists"):
        Control.create(tmp_path, UUID)
    assert control.path.exists()


def test_closing_can_remove_the_file(tmp_path: Path) -> None:
    made = Control.create(tmp_path, UUID)
    assert made.level() == LEVEL_MEMBERS
    made.close(unlink=True)
    assert not made.path.exists()
