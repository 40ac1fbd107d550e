"""The app without a browser: what it says when there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from tests.dashboard.processes import free_port

import batchscope.dashboard.app as app
from batchscope.dashboard.launch import command
from batchscope.dashboard.views import selection


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address where no exporter answers."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("BATCHSCOPE_URL", url)
    selection.client.clear()
    yield url
    selection.client().close()
    selection.client.clear()


def test_without_an_exporter_the_page_says_how_to_start_one(nobody: str) -> None:
    page = AppTest.from_file(str(Path(app.__file__)), default_timeout=20).run()
    said = " ".join(block.value for block in page.markdown)
    assert f"No exporter answers at `{nobody}`" in said
    assert "batchscope serve" in said
    assert not page.exception


def test_the_command_line_keeps_everything_on_loopback() -> None:
    flags = command(port=8501)
    assert "--server.address=127.0.0.1" in flags
    assert "--browser.gatherUsageStats=false" in flags
    assert Path(flags[4]).name == "app.py"
