"""Runs the scheduler driver for one version of vLLM and hands out what it counted and its rings."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, read

from batchscope.exporter.fold import RingFold
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.ring import RingReader, list_rings

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venvs/vllm/bin/python"
NATIVE = "0.32.0"
TIMEOUT_S = 600


@dataclass(frozen=True)
class Run:
    """One scenario of one version: the driver's own counts, and the ring."""

    version: str
    counted: Counter[str]
    ends: Counter[str]
    more: dict[str, Any]
    folder: Path

    def records(self) -> list[Seen]:
        """All records."""
        return read(self.folder)

    def fold(self) -> RingFold:
        """What the exporter makes of the ring."""
        return fold_of(RingReader(list_rings(self.folder)[0]))


def fold_of(reader: RingReader) -> RingFold:
    """What the exporter makes of all that a reader gets."""
    fold = RingFold(reader.hello, reader.ring_id, slo=None)
    while (raw := reader.poll()) is not None:
        seq, at = reader.position
        fold.fold(chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=at))
    return fold


Scenarios = dict[str, Run | str]
"""Of one version: scenario -> its run, or why it can't be brought there."""


def run_of(scenarios: Scenarios, name: str) -> Run:
    """The run of a scenario; the test is skipped where there is none."""
    found = scenarios[name]
    if isinstance(found, str):
        pytest.skip(found)
    return found


def versions() -> list[str]:
    """The installed one, and those that BATCHSCOPE_VLLM names."""
    return [NATIVE, *os.environ.get("BATCHSCOPE_VLLM", "").split()]


def environment(version: str) -> dict[str, str]:
    """Variables under which vLLM's own Python imports that version."""
    sources = "" if version == NATIVE else str(ROOT / ".cache/vllm" / version)
    env = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return env | {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


def drive(version: str, folder: Path) -> Scenarios:
    """Scenario -> its run, or why this version can't be brought there."""
    command = [str(PYTHON), "-m", "tests.engines.scheduler_process", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(version),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["version"].startswith(version), said["version"]
    scenarios = said["scenarios"].items()
    return {name: _run(version, folder / name, of) for name, of in scenarios}


def _run(version: str, folder: Path, of: dict[str, Any]) -> Run | str:
    if "not_here" in of:
        return str(of["not_here"])
    counted, ends = Counter(of.pop("counted")), Counter(of.pop("ends"))
    return Run(version, counted, ends, of, folder)
