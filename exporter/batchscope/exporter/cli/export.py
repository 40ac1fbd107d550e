"""`batchscope export --trace FILE`: what an engine was asked for, as a trace that replay takes."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from batchscope.exporter.cli import exporter_client, spoken, stored
from batchscope.exporter.errors import BatchscopeError, ConfigError

if TYPE_CHECKING:
    from batchscope.workload.trace import Arrival

PAGE_ROWS = 20_000
HALVES = {"prefill", "decode"}
"""Roles of engines that have a part of each request."""
_PAGE_KEYS = {"after_ns": "arrived_unix_ns", "after_ring": "ring_id", "after_serial": "serial"}


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    # argparse takes what begins with a minus for a flag unless it looks like a number to it
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    parser.add_argument(
        "--trace", type=Path, required=True, metavar="FILE", help="a new file of JSON lines"
    )
    parser.add_argument("--engine", metavar="NAME", help="its label; none: the only one")
    parser.add_argument(
        "--from", dest="begin", metavar="WHEN", help="2026-05-01T12:00, unix seconds, or -10m, -2h"
    )
    parser.add_argument("--to", dest="end", metavar="WHEN", help="likewise; default: now")
    exporter_client.add_exporter(parser)
    parser.add_argument("--store", type=Path, metavar="FILE", help="read this file instead")


def run(args: argparse.Namespace) -> int:
    """Write the trace, say what is in it and what had to be left out."""
    from batchscope.workload.trace import TraceError
    from batchscope.workload.written import write

    now_ns = time.time_ns()
    begin = 0 if args.begin is None else instant_ns(args.begin, now_ns=now_ns)
    end = now_ns if args.end is None else instant_ns(args.end, now_ns=now_ns)
    with _asked(args) as url:
        engine = _whole(url, args.engine or only_engine(url))
        rows = list(_rows(url, engine, begin, end))
    if not rows:
        raise BatchscopeError(f"no request of {engine!r} arrived then")
    made, left_out = arrivals(rows)
    try:
        write(args.trace, made)
    except TraceError as error:
        raise ConfigError(str(error)) from None
    print(_said(args.trace, made, left_out))
    return 0


def _asked(args: argparse.Namespace) -> AbstractContextManager[str]:
    """The URL of an exporter: a running one, or one of our own on a file."""
    return stored.reading(args.store) if args.store else nullcontext(exporter_client.url_of(args))


def only_engine(url: str) -> str:
    """The only engine that was ever seen, front ends aside, nor halves of a split where others are
    (then it is named on stderr). ConfigError when there are several.
    """
    seen = _roles(url)
    if not seen:
        raise BatchscopeError("no engine was ever recorded here")
    whole = sorted(name for name, roles in seen.items() if not roles & HALVES)
    if len(whole) > 1:
        raise ConfigError(f"which one? --engine {', '.join(whole)}")
    if whole and (halves := sorted(seen.keys() - set(whole))):
        why = f"{', '.join(halves)} served halves of requests"
        print(f"batchscope: taken is {whole[0]}: {why}", file=sys.stderr)
    return whole[0] if whole else min(seen)


def _roles(url: str) -> dict[str, set[str]]:
    """Each engine's label -> the roles that it was seen in; front ends aside."""
    seen: dict[str, set[str]] = {}
    for ring in exporter_client.get(url, "/api/v1/engines")["engines"]:
        if ring["role"] != "frontend":
            seen.setdefault(str(ring["engine"]), set()).add(ring["role"])
    return seen


def _whole(url: str, engine: str) -> str:
    """The engine, when it is one that serves whole requests: a prefill engine is asked for one
    token of each, a decode engine for the others, later.
    """
    if halves := _roles(url).get(engine, set()) & HALVES:
        part = " and ".join(sorted(halves))
        raise ConfigError(
            f"{engine} saw the {part} half of each request: no trace of what clients asked for"
        )
    return engine


def _rows(url: str, engine: str, begin: int, end: int) -> Iterator[Mapping[str, Any]]:
    """Page by page, in order of arrival."""
    asked: dict[str, Any] = {"engine": engine, "from_ns": begin, "to_ns": end, "rows": PAGE_ROWS}
    while True:
        answer = exporter_client.get(url, f"/api/v1/query/arrivals?{urlencode(asked)}")
        columns = answer["columns"]
        page = [dict(zip(columns, r, strict=True)) for r in zip(*columns.values(), strict=True)]
        yield from page
        if len(page) < PAGE_ROWS:
            return
        asked |= {param: page[-1][column] for param, column in _PAGE_KEYS.items()}


def arrivals(rows: list[Mapping[str, Any]]) -> tuple[list[Arrival], Counter[str]]:
    """(what can be replayed, what can't by reason). Which tokens prompts shared is not recorded,
    and so unknown in the trace. A client that vanished vanishes again after the same time, its
    output being what it had asked for.
    """
    from batchscope.workload.trace import Arrival

    left_out: Counter[str] = Counter()
    made: list[Arrival] = []
    origin = rows[0]["arrived_unix_ns"]
    for row in rows:
        if (why := _unknown(row)) is not None:
            left_out[why] += 1
            continue
        made.append(
            Arrival(
                ordinal=len(made),
                at_ns=row["arrived_unix_ns"] - origin,
                prompt_tokens=row["prompt_tokens"],
                output_tokens=_output(row),
                session=row["tenant"],
                model=row["model"],
                abort_after_ns=max(1, row["lasted_ns"]) if _left(row) else None,
            )
        )
    return made, left_out


def _unknown(row: Mapping[str, Any]) -> str | None:
    """Why a row can't be replayed."""
    if row["broken"] or row["prompt_tokens"] is None:
        return "records about it were lost"
    if row["finish_reason"] in (None, "unknown"):
        return "its end was not seen"
    return None if _output(row) else "it got no token and did not say how many it wanted"


def _left(row: Mapping[str, Any]) -> bool:
    return bool(row["finish_reason"] == "abort")


def _output(row: Mapping[str, Any]) -> int:
    """As generated; of one that was cut short as many as it wanted."""
    cut = row["finish_reason"] in ("abort", "error", "shed")
    return int((row["max_tokens"] if cut else None) or row["output_tokens"])


def _said(path: Path, made: list[Arrival], left_out: Counter[str]) -> str:
    span = spoken.duration(made[-1].at_ns if made else 0)
    left = "".join(f"; {n:,} left out: {why}" for why, n in sorted(left_out.items()))
    return f"{path}: {spoken.plural(len(made), 'arrival')} over {span}{left}"


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def instant_ns(text: str, *, now_ns: int) -> int:
    """A point in time as unix ns: -10m, unix seconds, or a date and time (no zone: local). Raises
    ConfigError.
    """
    from datetime import datetime

    try:
        if text.startswith("-") and text[-1] in _UNITS_S:
            return now_ns - round(float(text[1:-1]) * _UNITS_S[text[-1]] * 1e9)
        if text.replace(".", "", 1).isdigit():
            return round(float(text) * 1e9)
        return round(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"can't read {text!r} as a time: write -10m, 2026-05-01T12:00, or unix seconds"
        ) from None
