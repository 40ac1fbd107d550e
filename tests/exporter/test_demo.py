"""The demo end to end: its figures against the engine's own totals, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

DEMO = [sys.executable, "-m", "batchscope.exporter.cli", "demo"]
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}


def _demo(*args: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *args], capture_output=True, text=True, timeout=timeout, env=QUIET
    )


@pytest.fixture(scope="module", params=["cost", "torch"])
def outcome(request: pytest.FixtureRequest) -> dict[str, Any]:
    done = _demo("--engine", request.param, "--once", "--seconds", "12", "--load", "3", "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_its_totals_are_the_engines_own_exactly(outcome: dict[str, Any]) -> None:
    theirs = outcome["engine"]
    assert {k: outcome[k] for k in theirs if k != "deferrals"} == {
        k: v for k, v in theirs.items() if k != "deferrals"
    }
    assert sum(outcome["deferrals"].values()) == sum(theirs["deferrals"].values())


@pytest.mark.slow
def test_it_shows_an_engine_under_pressure_without_loss_or_violation(
    outcome: dict[str, Any],
) -> None:
    assert outcome["preemptions"] > 0
    assert outcome["deferrals"].get("kv_blocks", 0) > 0
    assert outcome["tokens"]["recomputed"] > 0
    assert outcome["requests"]["finished"] > 10
    assert outcome["audit"]["checks"] > 1000
    assert outcome["audit"]["violations"] == 0
    assert outcome["loss"]["records"] == 0


@pytest.mark.slow
def test_its_figures_hang_together(outcome: dict[str, Any]) -> None:
    assert 0 < outcome["tbt_ms"]["p50"] <= outcome["tbt_ms"]["p99"]
    assert 0 < outcome["ttft_ms"]["p50"] <= outcome["ttft_ms"]["p99"]
    assert outcome["goodput"]["requests_per_s"] <= outcome["throughput"]["requests_per_s"]
    assert 0 < outcome["kv"]["used_ratio_max"] <= 1
    assert 0 <= outcome["kv"]["waste_ratio"] < 0.5
    assert outcome["tokens"]["recomputed"] <= outcome["tokens"]["prefill"]
    assert 0 < outcome["observer_us"]["p50"] < 1000


def test_an_unknown_flag_is_one_sentence_and_exit_2() -> None:
    done = _demo("--nonsense", timeout=30)
    assert done.returncode == 2
    assert "--nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_slo_that_makes_no_sense_is_one_sentence_and_exit_2() -> None:
    done = _demo("--slo", "ttft<2parsecs", timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "2parsecs" in done.stderr


def test_a_store_that_exists_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("precious")
    done = _demo("--store", str(tmp_path / "kept"), timeout=30)
    assert done.returncode == 2
    assert "is there already" in done.stderr
    assert (tmp_path / "kept").read_text() == "precious"


@pytest.mark.slow
def test_ctrl_c_ends_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    log = tmp_path / "out"
    with log.open("w") as out:
        demo = subprocess.Popen(
            [*DEMO, "--engine", "cost"], stdout=out, stderr=subprocess.STDOUT, env=QUIET,
            start_new_session=True,
        )  # fmt: skip
    try:
        _await_word(log, "running")
        children = _children(demo.pid)
        assert len(children) == 3
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, log.read_text()
    finally:
        demo.kill()
    assert "Traceback" not in log.read_text()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(Path("/dev/shm").glob(f"batchscope-demo-{demo.pid}-*"))


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def _await_word(log: Path, word: str) -> None:
    deadline = time.monotonic() + 90
    while word not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_an_exporter_that_is_killed_ends_the_demo_in_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / "out"
    with log.open("w") as out:
        demo = subprocess.Popen(
            [*DEMO, "--engine", "cost", "--once", "--seconds", "60"],
            stdout=out, stderr=subprocess.STDOUT, env=QUIET, start_new_session=True,
        )  # fmt: skip
    try:
        _await_word(log, "running")
        os.kill(_children(demo.pid)[0], signal.SIGKILL)
        assert demo.wait(60) == 2, log.read_text()
    finally:
        demo.kill()
    assert "the exporter ended: killed by SIGKILL" in log.read_text()
    assert "Traceback" not in log.read_text()
