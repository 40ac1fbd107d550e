"""The contract suite of all adapters, over the real scheduler of each vLLM, in its environment."""

from __future__ import annotations

import subprocess

import pytest
from tests.engines.versions import PYTHON, ROOT, environment, versions

pytestmark = pytest.mark.engines

SUITE = (
    "tests/adapters/test_contract.py",
    "tests/adapters/test_in_the_engine_process.py::test_a_full_memory_never_becomes_a_signal",
    "tests/adapters/test_in_the_engine_process.py::test_remounting_the_memory_read_only_changes_nothing",
    "tests/adapters/test_in_the_engine_process.py::test_a_memory_that_is_read_only_means_off",
)


@pytest.mark.parametrize("version", versions())
def test_the_contract_holds_for_the_real_scheduler(version: str) -> None:
    command = [str(PYTHON), "-m", "pytest", "-q", *SUITE]
    # the imports of vLLM and torch warn
    options = ["-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env=environment(version) | {"BATCHSCOPE_CONTRACT": "vllm"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
