"""Numbered records of a trace file: CSV or JSON lines, plain or gzip, told by content.

Called by `read`. Whatever is wrong with the bytes becomes one TraceError that names the line.
"""

import csv
import gzip
import json
import zlib
from collections.abc import Generator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from batchscope.workload.trace import TraceError

Fields = dict[str, Any]

_GZIP_MAGIC = b"\x1f\x8b"


class Record(NamedTuple):
    """One row: its line in the file (from 1) and its cells by column or key."""

    line: int
    fields: Fields


def records(path: Path) -> Generator[Record, None, None]:
    """Every row of the file, in its order. Raises TraceError at the first that can't be read."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: the file is empty")
    if first[1].startswith("{"):
        yield _json_record(path, *first)
        yield from (_json_record(path, line, text) for line, text in lines)
    else:
        header = _cells(path, *first)
        yield from (_csv_record(path, header, line, text) for line, text in lines)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines that are not blank."""
    line = 0
    try:
        with _open(path) as file:
            for line, text in enumerate(file, start=1):
                if stripped := text.strip():
                    yield line, stripped
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        where = f"{path}, after line {line}" if line else f"{path}"
        raise TraceError(f"{where}: can't be read: {why}") from error


def _open(path: Path) -> TextIO:
    """The file as text, unpacked when its first bytes say gzip; the name plays no part."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _cells(path: Path, line: int, text: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True))]
    except csv.Error as error:
        raise TraceError(f"{path}, line {line}: not a CSV row: {error}") from error


def _csv_record(path: Path, header: list[str], line: int, text: str) -> Record:
    cells = _cells(path, line, text)
    if len(cells) != len(header):
        counts = f"{len(cells)} cells where the header names {len(header)}"
        raise TraceError(f"{path}, line {line}: {counts}")
    return Record(line, dict(zip(header, cells, strict=True)))


def _json_record(path: Path, line: int, text: str) -> Record:
    try:
        # Decimal, so that an instant keeps every digit that the file has
        fields = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}, line {line}: not a JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise TraceError(f"{path}, line {line}: not a JSON object")
    return Record(line, fields)
