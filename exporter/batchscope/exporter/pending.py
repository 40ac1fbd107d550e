"""Rows on their way to the store: gathered per table, counted in bytes, joined once per commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from batchscope.exporter.rows import joined, to_arrow

Columns = Mapping[str, Any]
Rows = Mapping[str, Columns]

_TEXT_BYTES = 64
"""What one Python string of a text column is taken for; most are shared words."""


def nbytes(rows: Rows) -> int:
    """Bytes that rows hold, in-memory tables (names with `_`) left out."""
    stored = (column for name, table in rows.items() if name[0] != "_" for column in table.values())
    return sum(_column_bytes(column) for column in stored)


def tables(parts: Iterable[Rows]) -> dict[str, pa.Table]:
    """Several batches of rows as one Arrow table per stored table, in the order they came."""
    gathered: dict[str, list[Columns]] = {}
    for rows in parts:
        for name, columns in rows.items():
            if name[0] != "_" and columns:
                gathered.setdefault(name, []).append(columns)
    return {name: to_arrow(name, joined(columns)) for name, columns in gathered.items()}


def _column_bytes(column: Any) -> int:
    return int(column.nbytes) if isinstance(column, np.ndarray) else len(column) * _TEXT_BYTES
