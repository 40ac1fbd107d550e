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
    is_leaving,
    pid_namespace,
    read_about,
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
    assert control.level() == LEVEL_OFF == read_level(tmp_path, UUID)


def test_what_is_asked_last_holds(control: Control, tmp_path: Path) -> None:
    request_detach(tmp_path, UUID)
    set_level(tmp_path, UUID, LEVEL_MEMBERS)
    assert not control.detach_requested()
    assert not is_leaving(tmp_path, UUID)
    assert control.level() == LEVEL_MEMBERS


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


HELLO = {
    "kind": "vllm",
    "engine": "vllm",
    "version": "0.32.0",
    "model_name": "tiny",
    "role": "both",
    "dp_rank": 3,
    "adapter_version": "0.1.0",
    "config": {"secret": "stays out"},
}


def test_the_page_names_the_engine_before_there_is_a_ring(tmp_path: Path) -> None:
    made = Control.create(tmp_path, UUID, level=LEVEL_OFF, hello=HELLO)
    about = read_about(tmp_path, UUID)
    known = {key: value for key, value in HELLO.items() if key != "config"}
    assert about == known | {"pid": os.getpid(), "pid_ns": pid_namespace("self")}
    assert made.level() == LEVEL_OFF
    set_level(tmp_path, UUID, LEVEL_MEMBERS)
    request_detach(tmp_path, UUID)
    assert read_about(tmp_path, UUID) == about
    assert is_leaving(tmp_path, UUID)
    made.close()


def test_whatever_an_engine_is_called_the_page_holds_it(tmp_path: Path) -> None:
    hello = dict.fromkeys(HELLO, "\U0001f9ea" * 5000) | {"engine": 'a"\n\x1b[31mb' * 500}
    Control.create(tmp_path, UUID, hello=hello).close()
    about = read_about(tmp_path, UUID)
    assert about["model_name"] == "\U0001f9ea" * 120
    assert about["engine"].startswith('a"??[31mb')
    assert (tmp_path / "ctl" / f"{UUID}.ctl").stat().st_size == 4096


@pytest.mark.parametrize("page", [b"", b"{", b"[1]", b"\xff\xfe", b"x" * 4032])
def test_a_page_that_does_not_say_who_it_is_is_a_control_file_all_the_same(
    tmp_path: Path, page: bytes
) -> None:
    made = Control.create(tmp_path, UUID)
    with made.path.open("r+b") as file:
        file.seek(64)
        file.write(page.ljust(4032, b"\0"))
    assert read_about(tmp_path, UUID) == {}
    assert read_level(tmp_path, UUID) == LEVEL_MEMBERS
    made.close()
