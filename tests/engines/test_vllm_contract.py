"""The contract suite of all adapters, over the real vLLM scheduler in its own environment."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.engines.versions import PYTHON, ROOT

pytestmark = pytest.mark.engines


def test_the_contract_holds_for_the_real_scheduler() -> None:
    command = [str(PYTHON), "-m", "pytest", "-q", "-k", "vllm", "tests/adapters/test_contract.py"]
    # the imports of vLLM and torch warn
    options = ["-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    env = os.environ | {"BATCHSCOPE_CONTRACT": "vllm", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
