"""A trace as a file that `read` reads back whole: JSON lines, nanoseconds. Called by the CLI."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from batchscope.workload.formats import OWN_COLUMNS
from batchscope.workload.trace import Arrival, TraceError


def write(path: Path, arrivals: Iterable[Arrival]) -> None:
    """Write a new file, one line an arrival in their order. TraceError if it is there already or
    can't be made.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(_line(arrival) for arrival in arrivals)
    except OSError as error:
        raise TraceError(f"can't write {path}: {error.strerror or error}") from error


def _line(arrival: Arrival) -> str:
    fields = arrival._asdict()
    named = {name: fields[name] for name in OWN_COLUMNS}
    return json.dumps(named, separators=(",", ":")) + "\n"
