"""What is drawn, as plain dicts: pure functions from query answers to component data."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

Figure = dict[str, Any]


def column(table: pa.Table, name: str) -> list[Any]:
    """A column as Python values, NULL as None."""
    return list(table.column(name).to_pylist())


def first(table: pa.Table) -> dict[str, Any]:
    """The only row of a one-row answer, {} of an empty one."""
    rows = table.slice(0, 1).to_pylist()
    return dict(rows[0]) if rows else {}


def ms(ns: float) -> float:
    """An instant or duration in ms, as JavaScript's clocks want it (exact to 0.3 us until 2096)."""
    return ns / 1e6
