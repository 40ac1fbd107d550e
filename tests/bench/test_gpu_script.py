"""bench/gpu.sh, dry: every line but those of the device runs, on a small shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import gpu

TREE = Path(__file__).parent.parent.parent
HEAVY = {
    "duckdb",
    "pyarrow",
    "pandas",
    "fastapi",
    "streamlit",
    "prometheus_client",
    "opentelemetry",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What gpu.json and the terminal got."""
    out = tmp_path_factory.mktemp("gpu")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", TREE / "bench" / "gpu.sh", out, "--tiny"],
        cwd=out,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "log.txt").read_text() == done.stdout
    return json.loads((out / "gpu.json").read_text()), done.stdout


def test_every_part_leaves_its_figures_and_a_line(ran: tuple[dict[str, Any], str]) -> None:
    found, printed = ran
    assert list(found["parts"]) == list(gpu.PARTS)
    for name, figures in found["parts"].items():
        assert "error" not in figures
        assert f"{name}: " in printed
    assert found["conditions"]["device"] == "cpu (no figures of a GPU)"


def test_logits_are_held_against_the_dense_recomputation(ran: tuple[dict[str, Any], str]) -> None:
    for name in ("correct", "correct, gathered"):
        part = ran[0]["parts"][name]
        assert part["passed"]
        assert 0 < part["worst"] < 1e-5
        assert {"single tokens", "single tokens and a prompt"} < set(part["cases"])


def test_the_floor_is_weights_and_kv_at_the_copys_bandwidth(
    ran: tuple[dict[str, Any], str],
) -> None:
    parts = ran[0]["parts"]
    case = parts["decode"]["cases"]["batch 6"]
    # float32: 151,872 parameters, 2 layers of keys and values of 2 heads of 16
    read = 4 * 151_872 + case["context_tokens"] * 6 * 2 * 2 * 2 * 16 * 4
    floor_ms = read / parts["ceiling"]["GB_per_s"] / 1e6
    assert case["floor_ms"] == pytest.approx(floor_ms, rel=0.02)
    assert case["of_floor"] == pytest.approx(case["p50_ms"] / case["floor_ms"])


def test_a_part_that_fails_says_how_and_the_run_is_no_success() -> None:
    def broken(_subject: Any) -> dict[str, Any]:
        raise RuntimeError("an illegal memory access was encountered")

    figures = gpu.attempt(broken, None)  # type: ignore[arg-type]
    assert "illegal memory access" in figures["error"]
    assert not gpu.right(figures)
    assert gpu.lines("decode", figures)[0] == "decode: FAILED"
    assert not gpu.right({"passed": False})
    assert gpu.right({"GB_per_s": 1.0})


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_the_large_shape_is_not_tried_without_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main([str(tmp_path)]) == 2
    assert "no CUDA device here" in capsys.readouterr().err


def test_a_python_with_torch_and_this_tree_is_enough() -> None:
    code = "import sys, bench.gpu; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())
