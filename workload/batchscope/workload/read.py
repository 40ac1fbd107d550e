"""Read a trace file. What it is, its header tells: arrivals, lengths only, client statistics.

Called by the CLI and the benches. Errors are TraceError: file, line, why, in one sentence.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from batchscope.workload.cells import tokens
from batchscope.workload.clients import ClientTable, client_table
from batchscope.workload.formats import (
    CLIENTS_COLUMNS,
    FORMATS,
    LENGTHS_COLUMNS,
    Format,
    Row,
    nearest,
    recognise,
)
from batchscope.workload.lengths import LengthTable
from batchscope.workload.source import Fields, Record, records
from batchscope.workload.trace import NEVER_NS, Column, Trace, TraceError

T = TypeVar("T")


def read(
    path: str | Path, *, keep_failures: bool = False, limit: int | None = None
) -> Trace | LengthTable | ClientTable:
    """The content of a trace file, plain or gzip.

    Rows without output tokens (in BurstGPT: failed requests) are counted and left out unless
    `keep_failures`; rows without a prompt always are. Reading stops after `limit` kept rows.
    """
    path = Path(path)
    with closing(records(path)) as source:
        first = next(source, None)
        if first is None:
            raise TraceError(f"{path}: a header and no rows")
        rows = chain([first], source)
        columns = first.fields.keys()
        if columns == LENGTHS_COLUMNS:
            return _lengths(path, rows, limit=limit)
        if columns == CLIENTS_COLUMNS:
            return client_table(path, rows)
        if (known := recognise(first.fields)) is None:
            raise _unknown(path, first)
        return _Reading(path, known, keep_failures=keep_failures, limit=limit).trace(rows)


def read_trace(path: str | Path, *, keep_failures: bool = False, limit: int | None = None) -> Trace:
    """As `read`, for a caller who needs arrivals: raises TraceError on a file that has none."""
    content = read(path, keep_failures=keep_failures, limit=limit)
    if isinstance(content, Trace):
        return content
    what = "lengths" if isinstance(content, LengthTable) else "client statistics"
    raise TraceError(f"{path}: holds {what} and no arrivals: draw those from a law")


class _Reading:
    """Columns while they grow, and what was left out on the way."""

    def __init__(
        self, path: Path, known: Format, *, keep_failures: bool, limit: int | None
    ) -> None:
        self._path, self._format, self._limit = path, known, limit
        self._keep_failures = keep_failures
        self._at_ns, self._prompt, self._output = array("q"), array("q"), array("q")
        self._prefix: list[tuple[int, ...]] = []
        self._session: list[str | None] = []
        self._model: list[str | None] = []
        self._leaves: list[int | None] = []
        self._block_tokens = known.block_tokens
        self._start_ns: int | None = None
        self._read = 0
        self._skipped: Counter[str] = Counter()
        self._odd_prefixes = 0

    def trace(self, rows: Iterator[Record]) -> Trace:
        """The whole file as a trace that starts at its earliest row, left out or not."""
        for row in _parsed(self._path, self._format, rows):
            self._take(row)
            if len(self._at_ns) == self._limit:
                break
        if self._prefix and len(self._prefix) != len(self._at_ns):
            raise TraceError(f"{self._path}: some rows name shared blocks and others don't")
        at_ns = _column(self._at_ns) - (self._start_ns or 0)
        order = np.argsort(at_ns, kind="stable")  # equal instants keep the order of the file
        return Trace(
            at_ns=at_ns[order],
            prompt_tokens=_column(self._prompt)[order],
            output_tokens=_column(self._output)[order],
            prefix=_ordered(self._prefix, order),
            block_tokens=self._block_tokens if self._prefix else None,
            session=_ordered(self._session, order) if any(self._session) else None,
            model=_ordered(self._model, order) if any(self._model) else None,
            abort_after_ns=_patience(self._leaves, order),
            facts=self._facts(at_ns),
        )

    def _take(self, row: Row) -> None:
        self._read += 1
        self._start_ns = min(row.at_ns, row.at_ns if self._start_ns is None else self._start_ns)
        if (reason := self._refusal(row)) is not None:
            self._skipped[reason] += 1
            return
        self._at_ns.append(row.at_ns)
        self._prompt.append(row.prompt_tokens)
        self._output.append(row.output_tokens)
        self._session.append(row.session)
        self._model.append(row.model)
        self._leaves.append(row.abort_after_ns)
        if row.prefix is not None:
            self._share(row, row.prefix)

    def _share(self, row: Row, prefix: tuple[int, ...]) -> None:
        size = row.block_tokens or self._format.block_tokens
        if size != (self._block_tokens or size):
            raise TraceError(f"{self._path}: blocks of {size} and of {self._block_tokens} tokens")
        self._block_tokens = size
        self._prefix.append(prefix)
        self._odd_prefixes += size is not None and len(prefix) != -(-row.prompt_tokens // size)

    def _refusal(self, row: Row) -> str | None:
        if row.prompt_tokens == 0:
            return "no_prompt_tokens"
        if row.output_tokens == 0 and not self._keep_failures:
            return self._format.no_output
        return None

    def _facts(self, at_ns: Column) -> dict[str, Any]:
        return {
            "source": str(self._path),
            "format": self._format.name,
            "rows_read": self._read,
            "rows_skipped": dict(self._skipped),
            "rows_out_of_order": int(np.sum(np.diff(at_ns) < 0)),
            "rows_with_odd_prefix": self._odd_prefixes,
            "read_limit": self._limit,
        }


def _parsed(path: Path, known: Format, rows: Iterator[Record]) -> Iterator[Row]:
    parse = known.parser()
    return (_placed(path, record, parse) for record in rows)


def _placed(path: Path, record: Record, parse: Callable[[Fields], T]) -> T:
    """What a parser makes of a record; its refusal gets the file and the line."""
    try:
        return parse(record.fields)
    except ValueError as error:
        raise TraceError(f"{path}, line {record.line}: {error}") from error


def _lengths(path: Path, rows: Iterator[Record], *, limit: int | None) -> LengthTable:
    """Pairs of a lengths-only file; the rows that can't be served are counted and left out."""
    pairs = np.array([_placed(path, record, _pair) for record in rows], dtype=np.int64)
    kept = pairs[(pairs > 0).all(axis=1)][:limit]
    if not len(kept):
        raise TraceError(f"{path}: no row has both prompt and output tokens")
    skipped = int((pairs <= 0).any(axis=1).sum())
    facts = {
        "source": str(path),
        "format": "lengths",
        "rows_read": len(pairs),
        "rows_skipped": {"no_tokens": skipped} if skipped else {},
    }
    return LengthTable(prompt_tokens=kept[:, 0], output_tokens=kept[:, 1], facts=facts)


def _pair(fields: Fields) -> tuple[int, int]:
    return tokens(fields, "num_prefill_tokens"), tokens(fields, "num_decode_tokens")


def _unknown(path: Path, first: Record) -> TraceError:
    columns = ",".join(first.fields)[:120]
    hint = _difference(first.fields)
    return TraceError(f"{path}: no known trace has the columns {columns!r} ({hint})")


def _difference(fields: Fields) -> str:
    """What keeps columns from being those of the nearest format; if none is near, all formats."""
    if (known := nearest(fields)) is None:
        return "known: " + ", ".join(sorted({one.name for one in FORMATS} | {"lengths", "clients"}))
    wrong = {"it also needs": known.lacking(fields), "it knows no": known.foreign(fields)}
    said = [f"{what} {', '.join(names)}"[:120] for what, names in wrong.items() if names]
    return f"nearest is {known.name}: {'; '.join(said)}"


def _column(values: "array[int]") -> Column:
    return np.array(values, dtype=np.int64)


def _patience(leaves: list[int | None], order: Column) -> Column | None:
    """None when every client waits for ever."""
    if all(delay is None for delay in leaves):
        return None
    return np.array([NEVER_NS if d is None else d for d in leaves], dtype=np.int64)[order]


def _ordered(values: list[Any], order: Column) -> tuple[Any, ...] | None:
    return tuple(values[row] for row in order) if values else None
