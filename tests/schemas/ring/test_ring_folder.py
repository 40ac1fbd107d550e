"""Where rings lie, who may read there, and what is removed when."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from batchscope.schemas.ring import (
    Control,
    RingLocked,
    RingReader,
    RingUnavailable,
    RingWriter,
    list_rings,
    lock_exporter,
    retire,
    ring_folder,
    sweep,
)
from batchscope.schemas.ring.folder import drop, hold

Open = Callable[..., RingReader]
DAY_NS = 86_400 * 10**9


def test_the_environment_chooses_the_folder() -> None:
    assert ring_folder({"BATCHSCOPE_DIR": "/somewhere"}) == Path("/somewhere")


def test_the_default_is_this_users_folder_in_shared_memory() -> None:
    memory = Path("/dev/shm")
    expected = memory / f"batchscope-{os.getuid()}" if memory.is_dir() else None
    assert ring_folder({}) == ring_folder({"BATCHSCOPE_DIR": ""}) == expected


def test_only_complete_rings_are_listed(writer: RingWriter, tmp_path: Path) -> None:
    growing = RingWriter(writer.path.parent, {}, size=1)
    growing.grow()
    assert list_rings(writer.path.parent) == [writer.path]
    assert list_rings(tmp_path / "nowhere") == []
    growing.close()


def test_a_retired_ring_is_gone_with_its_control_file(writer: RingWriter) -> None:
    control = Control.create(writer.path.parent, writer.ring_uuid)
    control.close()
    writer.close()
    assert [retire(writer.path), retire(writer.path)] == [True, True]
    assert not writer.path.exists()
    assert not control.path.exists()


def test_a_second_exporter_is_refused_in_one_sentence(tmp_path: Path) -> None:
    lock = lock_exporter(tmp_path / "rings")
    with pytest.raises(RingLocked, match="another exporter reads"):
        lock_exporter(tmp_path / "rings")
    code = (
        "import sys; from pathlib import Path; from batchscope.schemas.ring import *\n"
        "try: lock_exporter(Path(sys.argv[1]))\nexcept RingLocked as why: print(why)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rings")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "another exporter reads" in said
    drop(lock)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == ""


def test_a_file_system_without_locks_is_not_taken_for_another_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(RingUnavailable, match=r"can't lock .*rings: No locks available"):
        lock_exporter(tmp_path / "rings")


def test_a_sweep_removes_the_dead_of_more_than_a_day(writer: RingWriter, tmp_path: Path) -> None:
    folder = writer.path.parent
    control = Control.create(folder, writer.ring_uuid)
    other = folder / "notes.txt"
    other.write_text("not ours")
    born = writer.path.stat().st_mtime_ns
    later = max(born, control.path.stat().st_mtime_ns) + DAY_NS + 10**9
    assert sweep(folder, wall=lambda: later) == []  # both are alive
    writer.close()
    control.close()
    assert sweep(folder, wall=lambda: later - DAY_NS) == []
    assert set(sweep(folder, wall=lambda: later)) == {writer.path, control.path}
    assert other.exists()
    assert sweep(tmp_path / "nowhere") == []


ASKING = """
import fcntl, os, sys
asked = os.open(sys.argv[1], os.O_RDONLY)
fcntl.lockf(asked, fcntl.LOCK_SH | fcntl.LOCK_NB)
print("asking", flush=True)
sys.stdin.read()
fcntl.lockf(asked, fcntl.LOCK_UN)
"""


def test_who_asks_while_a_file_is_being_made_does_not_keep_its_maker_from_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    command = [sys.executable, "-S", "-c", ASKING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as asks:
        assert asks.stdin is not None
        assert asks.stdout is not None
        assert asks.stdout.readline() == b"asking\n"
        with pytest.raises(BlockingIOError):
            hold(fd)  # for longer than one asks
        threading.Timer(0.01, asks.stdin.close).start()
        hold(fd)
    drop(fd)


def test_a_ring_that_was_written_to_lately_is_not_old(tmp_path: Path) -> None:
    now = [10**18]
    ring = RingWriter(tmp_path, {}, size=1, wall=lambda: now[0])
    while not ring.grow():
        pass
    os.utime(ring.path, (1, 1))
    now[0] += 10 * DAY_NS
    ring.reserve(1 << 30)
    ring.close()
    os.utime(ring.path, (1, 1))
    assert sweep(tmp_path, wall=lambda: now[0] + DAY_NS // 2) == []
    assert sweep(tmp_path, wall=lambda: now[0] + 2 * DAY_NS) == [ring.path]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(RingUnavailable, match="belongs to uid 12345"):
        RingWriter(folder, {}).grow()
