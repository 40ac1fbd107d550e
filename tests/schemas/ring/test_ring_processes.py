"""Two processes and one file: torn writes, kill -9, forks, full memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from tests.schemas.ring.test_ring_reader import bodies, everything, kind

from batchscope.schemas.records import FINISHED, LOSS
from batchscope.schemas.ring import Raw, RingReader
from batchscope.schemas.ring.layout import FRAME_BYTES

Open = Callable[..., RingReader]
Start = Callable[..., "subprocess.Popen[str]"]
ENGINE = Path(__file__).with_name("writing.py")
SECONDS = 20


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def one(mode: str, *, folder: Path = tmp_path, size: int = 256 << 10) -> subprocess.Popen[str]:
        command = [sys.executable, str(ENGINE), str(folder), mode, str(size)]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        return running[-1]

    yield one
    for engine in running:
        engine.kill()
        engine.communicate()


def line(engine: subprocess.Popen[str]) -> str:
    assert engine.stdout is not None
    return engine.stdout.readline().strip()


def number(record: bytes) -> int:
    """Which record this is, after it proved to be whole."""
    text, check = record[:-4], record[-4:]
    assert crc32(text).to_bytes(4, "little") == check
    return int(FINISHED.struct.unpack_from(text)[2])


def test_a_reader_beside_a_fast_writer_sees_no_torn_record(start: Start, open_reader: Open) -> None:
    engine = start("stream")
    reader = open_reader(Path(line(engine)))
    raws: list[Raw] = []
    end = time.monotonic() + 1.3  # the writer goes on a little longer
    while time.monotonic() < end:
        raws += filter(None, [reader.poll()])
    written = int(line(engine))
    raws += everything(reader)
    lost = [LOSS.struct.unpack_from(raw.data, FRAME_BYTES)[3] for raw in raws if raw.is_loss]
    read = [b for raw in raws if not raw.is_loss for b in bodies(raw)]
    seen = [number(b) for b in read if kind(b) == FINISHED.kind]
    assert seen == sorted(set(seen))
    assert seen[-1] == written - 1
    assert len(read) + sum(lost) == reader.position[0] - 1
    assert reader.rejected == 0
    assert len(seen) > 1000


def test_after_kill_9_everything_up_to_the_last_record_is_readable(
    start: Start, open_reader: Open
) -> None:
    engine = start("once", size=1 << 20)
    reader = open_reader(Path(line(engine)))
    assert line(engine) == "written"
    assert reader.alive()
    engine.send_signal(signal.SIGKILL)
    engine.wait(SECONDS)
    assert not reader.alive()
    assert not reader.drained()
    read = [b for raw in everything(reader) for b in bodies(raw)]
    assert [number(b) for b in read if kind(b) == FINISHED.kind] == list(range(1000))
    assert reader.drained()


def test_a_forked_worker_neither_writes_nor_keeps_the_ring_alive(
    start: Start, open_reader: Open
) -> None:
    engine = start("fork")
    reader = open_reader(Path(line(engine)))
    assert line(engine) == "('ready', False)"
    assert "another process" in line(engine)
    assert reader.alive()
    end = time.monotonic() + SECONDS
    read: list[bytes] = []
    while len(read) < 3 and time.monotonic() < end:
        read += [b for raw in everything(reader) for b in bodies(raw)]
    engine.send_signal(signal.SIGKILL)
    engine.wait(SECONDS)
    assert not reader.alive()  # although the worker still runs
    assert [number(b) for b in read[1:]] == [0, 2]


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "memory"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_ring_that_does_not_fit_memory_is_refused_and_leaves_nothing(
    small_memory: Path, start: Start
) -> None:
    engine = start("once", folder=small_memory / "rings", size=4 << 20)
    assert line(engine).endswith("No space left on device")
    assert engine.wait(SECONDS) == 0
    assert [path for path in (small_memory / "rings").rglob("*") if path.is_file()] == []


def test_memory_that_fills_up_later_does_not_touch_a_writer(
    small_memory: Path, start: Start
) -> None:
    engine = start("fill", folder=small_memory / "rings", size=1 << 20)
    line(engine)
    assert line(engine) == "No space left on device"
    assert line(engine) == "64"
    assert engine.wait(SECONDS) == 0  # a hole in the file would have been SIGBUS


def test_a_limit_on_file_size_is_refused_like_any_other(tmp_path: Path) -> None:
    limited = f"ulimit -f 1000; exec {sys.executable} {ENGINE} {tmp_path}/rings once 4194304"
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("File too large")
    assert list((tmp_path / "rings").glob("*.growing")) == []
