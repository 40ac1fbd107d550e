"""Ways into a real vLLM: `batchscope run`, a folder on PYTHONPATH, offline engines, a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, records
from tests.engines.serving import serving
from tests.engines.tiny_model import OFFLINE
from tests.engines.versions import PYTHON, ROOT, TIMEOUT_S, environment, versions

from batchscope.exporter.cli import processes
from batchscope.schemas.ring import Resident, RingReader, roster

pytestmark = pytest.mark.engines

RUN = (sys.executable, "-m", "batchscope.exporter.cli", "run", "--name", "blue")
SEVERAL = ("--api-server-count", "2", "--tensor-parallel-size", "2")
SETTINGS = OFFLINE | {"BATCHSCOPE_RING_BYTES": str(4 << 20)}
FORK = """
import os
from batchscope.adapters import vllm
vllm.register()
from tests.engines.vllm_driver import Driver
from tests.engines.vllm_parts import request, scheduler
child = os.fork()
if child == 0:
    driver = Driver(scheduler())
    driver.add(request("r", 30, 5))
    driver.drain()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(child)
"""


@pytest.fixture
def rings() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that imports vLLM, and has no batchscope: an editable one is not found this way."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    done = subprocess.run(
        [python, "-c", "import vllm.version, batchscope.adapters"],
        env={**os.environ, "PYTHONPATH": packages()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'batchscope'" in done.stderr
    return python


def packages() -> str:
    """What is installed beside vLLM."""
    return str(next((PYTHON.parents[1] / "lib").glob("python3.*")) / "site-packages")


def core_of(folder: Path) -> Resident:
    """The only engine core that has a ring."""
    (found,) = (each for each in roster(folder) if each.about["role"] != "frontend")
    return found


def seen(core: Resident) -> list[Seen]:
    assert core.ring is not None
    return list(records(RingReader(core.ring)))


def emitted(told: list[Seen]) -> int:
    return sum(record["output_tokens"] for record in told if record.name == "finished")


def test_run_puts_us_into_a_python_without_us_and_only_where_something_is_scheduled(
    bare: Path, rings: Path, tmp_path: Path
) -> None:
    vllm = (*RUN, "--dir", str(rings), "--", str(bare), "-m", "vllm.entrypoints.cli.main")
    path, bind = packages(), "nobind"
    with serving(
        tmp_path,
        rings,
        vllm=vllm,
        flags=SEVERAL,
        PYTHONPATH=path,
        VLLM_CPU_OMP_THREADS_BIND=bind,
    ) as server:
        tokens = [server.tokens(f"r{n}", list(range(5 + n, 40)), 10) for n in range(8)]
        core = core_of(rings)
        assert core.about["engine"] == "blue"
        assert sum(map(len, tokens)) == emitted(seen(core)) == 80
        roles = {each.about["pid"]: each.about["role"] for each in roster(rings)}
        workers = processes.children_of(core.about["pid"])
        assert len(workers) >= 2
        assert not roles.keys() & set(workers)
        assert len(roles) <= 3, "the core, and at most one each of two API servers"
        assert core.about["pid"] != server.process.pid


def test_a_folder_on_the_path_and_engines_without_a_server(
    bare: Path, rings: Path, tmp_path: Path
) -> None:
    addon = tmp_path / "addon"
    install = ["-m", "pip", "install", "-q", "--no-deps", "--target", str(addon), str(ROOT)]
    if subprocess.run([str(PYTHON), *install], check=False).returncode:
        pytest.skip("pip can't build a wheel here: no index for the build's own needs")
    path = os.pathsep.join(map(str, (addon, packages(), ROOT)))
    done = subprocess.run(
        [bare, "-m", "tests.engines.offline_process", rings],
        cwd=tmp_path,
        env={**os.environ, **SETTINGS, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["origin"].startswith(str(addon))
    assert said["tokens"]["0"] == said["tokens"]["1"]
    within, apart = core_of(rings / "0"), core_of(rings / "1")
    assert within.about["pid"] == said["pid"] != apart.about["pid"]
    for core, tokens in ((within, said["tokens"]["0"]), (apart, said["tokens"]["1"])):
        assert emitted(seen(core)) == sum(map(len, tokens)) == 240


@pytest.mark.parametrize("version", versions())
def test_a_core_that_was_forked_after_the_plugin_was_loaded_has_the_ring(
    version: str, rings: Path
) -> None:
    env = environment(version) | SETTINGS | {"BATCHSCOPE_DIR": str(rings)}
    done = subprocess.run(
        [PYTHON, "-c", FORK],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    core = core_of(rings)
    assert core.about["pid"] == int(done.stdout.splitlines()[-1])
    assert emitted(seen(core)) == 5
