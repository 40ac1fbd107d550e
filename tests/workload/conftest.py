"""Where the published trace files are, when this machine has them."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def traces() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared" / "traces"
    folder = Path(os.environ.get("BATCHSCOPE_TRACES") or beside)
    if not folder.is_dir():
        pytest.skip("no published traces here: set BATCHSCOPE_TRACES to their folder")
    return folder
