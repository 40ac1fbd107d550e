"""What only a process of its own can show: imports, SIGKILL, a full shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.ring_records import Seen, records

from batchscope.schemas.ring import RingReader, list_rings

ROOT = Path(__file__).parents[2]
FOREIGN = "BATCHSCOPE_CONTRACT" in os.environ
"""Whether the engine under test is somebody else's: slower to import, and its imports warn."""
DEADLINE_S = 120 if FOREIGN else 20
STRICT = [] if FOREIGN else ["-W", "error"]


def python(code: str, *args: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *STRICT, "-c", code, *args],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def test_only_the_standard_library_and_the_schemas_enter_the_engine_process() -> None:
    code = """
import sys
before = set(sys.modules)
from batchscope.adapters import mini, boot
new = set(sys.modules) - before
foreign = {n for n in new if n.partition('.')[0] not in {*sys.stdlib_module_names, 'batchscope'}}
ours = {'.'.join(n.split('.')[:2]) for n in new if n.startswith('batchscope.')}
print(sorted(foreign), sorted(ours))
"""
    assert finished(python(code)) == (0, "[] ['batchscope.adapters', 'batchscope.schemas']\n", "")


def test_attaching_imports_nothing_foreign_either(tmp_path: Path) -> None:
    code = """
import sys
from tests.adapters.drivers import MiniDriver
from batchscope.adapters import mini
driver = MiniDriver()
engine = driver.engine()
mini.attach(engine)
before = set(sys.modules)
driver.run(engine)
print(sorted(set(sys.modules) - before), 'numpy' in sys.modules, 'torch' in sys.modules)
"""
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(tmp_path), "BATCHSCOPE_OVERHEAD": "0"}
    assert finished(python(code, env=env)) == (0, "[] False False\n", "")


STUCK = """
import sys, time
from tests.adapters.drivers import MiniDriver
from batchscope.adapters import mini
from batchscope.engine.cost import CostRunner
driver = MiniDriver()
engine = driver.engine()
mini.attach(engine)
steps = 0
def sleep(seconds):
    global steps
    steps += 1
    if steps == 20:
        time.sleep(600)
engine.runner = CostRunner(sleep=sleep)
driver.run(engine)
"""


def test_after_a_kill_the_ring_names_the_batch_that_was_in_flight(tmp_path: Path) -> None:
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(tmp_path), "BATCHSCOPE_OVERHEAD": "0"}
    process = python(STUCK, env=env)
    try:
        reader = RingReader(awaited(tmp_path, process))
        seen = until(reader, "scheduled", 20)
        assert reader.alive()
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGKILL
    seen += records(reader)
    assert not reader.alive()
    assert (seen[-1].name, seen[-1]["iteration_id"]) == ("scheduled", 20)
    completed = [record["iteration_id"] for record in seen if record.name == "completed"]
    assert completed == list(range(1, 20))
    assert seen[-1]["n_decode"] + seen[-1]["n_prefill"] > 0


def awaited(folder: Path, process: subprocess.Popen[str]) -> Path:
    """The ring, as soon as the engine has made it."""
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends and process.poll() is None:
        if rings := list_rings(folder):
            return rings[0]
    raise AssertionError(f"no ring: {process.communicate()}")


def until(reader: RingReader, name: str, iteration: int) -> list[Seen]:
    seen: list[Seen] = []
    ends = time.monotonic() + DEADLINE_S
    while time.monotonic() < ends:
        seen += records(reader)
        if seen and seen[-1].name == name and seen[-1]["iteration_id"] == iteration:
            return seen
    raise AssertionError(f"{name} {iteration} never came, last: {seen[-1:]}")


def last(out: str) -> str:
    """The last line: engines may be talkative."""
    return out.splitlines()[-1]


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 3 MiB."""
    where = tmp_path / "shm"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


RUN = """
import os, sys
from pathlib import Path
from tests.adapters.drivers import DRIVERS
from batchscope.adapters import boot
from batchscope.adapters.guard import is_hook
from batchscope.schemas.ring import set_level
shm, when = Path(sys.argv[1]), int(sys.argv[2])
def fill():
    with open(shm / 'full', 'wb', buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
(driver,) = DRIVERS
expected = driver.run(driver.engine())
engine = driver.engine()
if when == 0:
    fill()
handle = boot.attach(driver.adapter(), engine, os.environ)
def wake(step):
    if step == 5 and handle.ring_uuid:
        set_level(shm / 'rings', handle.ring_uuid, 2)
    if step == when:
        fill()
assert driver.run(engine, every_step=wake) == expected
print(handle.attached, any(is_hook(v) for own in driver.owners(engine) for v in vars(own).values()))
"""


@pytest.mark.parametrize(
    ("when", "attached"),
    [(0, False), (10, False), (40, True)],
    ids=["before the attach", "while the ring grows", "with the ring in use"],
)
def test_a_full_memory_never_becomes_a_signal(
    small_memory: Path, when: int, attached: bool
) -> None:
    env = {
        "BATCHSCOPE_DIR": str(small_memory / "rings"),
        "BATCHSCOPE_RING_BYTES": str(2 << 20),
        "BATCHSCOPE_OVERHEAD": "0",
    }
    code, out, err = finished(python(RUN, str(small_memory), str(when), env=env))
    assert (code, last(out)) == (0, f"{attached} {attached}"), err
    assert err.count("batchscope: off, ") == (not attached)


def test_remounting_the_memory_read_only_changes_nothing(small_memory: Path) -> None:
    """The kernel refuses it while the ring is open for writing; the map would stay valid anyway."""
    env = {
        "BATCHSCOPE": "1",
        "BATCHSCOPE_DIR": str(small_memory / "rings"),
        "BATCHSCOPE_RING_BYTES": str(1 << 20),
        "BATCHSCOPE_OVERHEAD": "0",
    }
    remount = "subprocess.run(['mount', '-o', 'remount,ro', str(shm)], capture_output=True)"
    fill, before = "        fill()\nassert", "import subprocess\n"
    assert fill in RUN
    script = before + RUN.replace(fill, f"        {remount}\nassert")
    code, out, err = finished(python(script, str(small_memory), "20", env=env))
    assert (code, last(out)) == (0, "True True"), err


def test_a_memory_that_is_read_only_means_off(small_memory: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_memory)], check=True)
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(small_memory / "rings")}
    code, out, err = finished(python(RUN, str(small_memory), "1000", env=env))
    assert (code, last(out)) == (0, "False False"), err
    said = [line for line in err.splitlines() if line.startswith("batchscope: ")]
    assert len(said) == 1
    assert said[0].startswith("batchscope: off, ")
