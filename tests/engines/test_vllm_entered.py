"""A real vLLM without batchscope in its environment, entered while it serves."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.adapters.ring_records import records
from tests.engines.serving import Server, serving
from tests.engines.versions import PYTHON

from batchscope.schemas.ring import RingReader, list_rings, roster

pytestmark = pytest.mark.engines

ATTACH = (sys.executable, "-m", "batchscope.exporter.cli", "attach")


@pytest.fixture
def rings() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python beside vLLM's own, to which an editable batchscope is not known."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare/bin/python"


def asked(server: Server, number: int) -> list[int]:
    return server.tokens(f"r{number}", list(range(5 + number, 60)), 40)


def test_injected_under_load_it_records_and_answers_as_before(
    bare: Path, rings: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyinjector", reason="the extra `inject` is not installed")
    path = str(next((PYTHON.parents[1] / "lib").glob("python3.*")) / "site-packages")
    vllm = (str(bare), "-m", "vllm.entrypoints.cli.main")
    with serving(tmp_path, rings, vllm=vllm, PYTHONPATH=path) as server:
        alone = [asked(server, number) for number in range(8)]
        assert roster(rings) == []
        with ThreadPoolExecutor(8) as clients:
            running = [clients.submit(asked, server, number) for number in [*range(8)] * 4]
            words = [*ATTACH, str(server.process.pid), "--inject", "--wait", "60"]
            done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
            assert done.returncode == 0, done.stderr
            assert [future.result() for future in running] == alone * 4
        assert [asked(server, number) for number in range(8)] == alone
        core = next(each for each in roster(rings) if each.about["role"] != "frontend")
        assert core.ring in list_rings(rings)
        assert core.about["pid"] != server.process.pid
        assert core.ring is not None
        told = list(records(RingReader(core.ring)))
    ends = [record["output_tokens"] for record in told if record.name == "finished"]
    assert ends[-8:] == [40] * 8
