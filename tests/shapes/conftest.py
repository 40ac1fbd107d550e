"""Shapes need the traces; the rest of their world is virtual."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.shapes.runs import folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="no traces: set BATCHSCOPE_TRACES to a folder that has them")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.shapes)
            if folder() is None:
                item.add_marker(skip)
