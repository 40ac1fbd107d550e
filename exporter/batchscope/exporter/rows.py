"""Folded rows as Arrow: wire codes become words, hashes hex, NULL64 becomes NULL.

Rows are table -> column -> values: int64 arrays (NULL = -2**63, enums as wire codes), lists of
text, lists of arrays. sql/tables/*.sql says what each column becomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from batchscope.exporter.tables import columns as declared
from batchscope.schemas.reasons import (
    DeferralReason,
    Direction,
    FinishReason,
    GraphMode,
    NoticeKind,
    Phase,
    Position,
    PreemptMode,
    Verdict,
    Word,
    words,
)
from batchscope.schemas.records import NULL64

Columns = Mapping[str, Any]
Rows = dict[str, Columns]

_ENUMS: dict[str, type[Word]] = {
    "phase": Phase,
    "reason": DeferralReason,
    "admission_stop": DeferralReason,
    "position": Position,
    "finish_reason": FinishReason,
    "verdict": Verdict,
    "mode": PreemptMode,
    "direction": Direction,
    "graph_mode": GraphMode,
    "kind": NoticeKind,
}
_TYPES: dict[str, Any] = {
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "INTEGER": pa.int32(),
    "UINTEGER": pa.uint32(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "UINTEGER[]": pa.list_(pa.uint32()),
}


def to_arrow(table: str, columns: Columns) -> pa.Table:
    """Rows of one table as its .sql file wants them, batch_id left out."""
    kinds = {name: kind for name, kind in declared(table).items() if name in columns}
    return pa.table({name: _column(name, kind, columns[name]) for name, kind in kinds.items()})


def _column(name: str, kind: str, values: Any) -> Any:
    if isinstance(values, list):
        return pa.array(values, _TYPES[kind])
    if kind == "VARCHAR":
        return _words(name, values) if name in _ENUMS else _hex(values)
    if kind == "BOOLEAN":
        return pa.array(values != 0)
    unsigned = name == "ring_id"  # 64 bits of a uuid: the highest may be set
    mask = None if unsigned else values == NULL64
    if kind != "BIGINT":
        values = np.where(False if mask is None else mask, 0, values)
        values = values.astype(_TYPES[kind].to_pandas_dtype())
    return pa.array(values, mask=mask)


def _words(name: str, codes: npt.NDArray[np.int64]) -> Any:
    table = _dictionary(_ENUMS[name])
    known = (codes > 0) & (codes <= len(table))
    indices: Any = pa.array(np.where(known, codes - 1, 0).astype(np.int32), mask=~known)
    return pa.DictionaryArray.from_arrays(indices, table)


@cache
def _dictionary(kind: type[Word]) -> Any:
    return pa.array(words(kind)[1:], pa.string())


def _hex(bits: npt.NDArray[np.int64]) -> Any:
    unsigned = bits.astype(np.uint64).tolist()
    texts = [f"{n:016x}" for n in unsigned]
    return pa.array(texts, pa.string(), mask=bits == NULL64)


def joined(parts: Sequence[Columns]) -> Columns:
    """Several lots of rows of one table as one."""
    if len(parts) == 1:
        return parts[0]
    return {name: _chained([part[name] for part in parts]) for name in parts[0]}


def _chained(columns: list[Any]) -> Any:
    if isinstance(columns[0], list):
        return [value for column in columns for value in column]
    return np.concatenate(columns)
