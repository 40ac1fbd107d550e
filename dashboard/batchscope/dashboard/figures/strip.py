"""The strip above the panes: where admission stopped. Input is an answer of admission_stops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import pyarrow as pa

from batchscope.dashboard import palette, words
from batchscope.dashboard.figures import Figure, ms

Row = dict[str, Any]
LONG_STEPS = 10
"""An iteration may take this many times the usual and its decision still counts as in force."""


def stops_strip(stops: pa.Table, lost: Sequence[list[Any]]) -> Figure:
    """What admission stopped at, bucket by bucket: the reason of most decisions.

    `lost` are the shaded stretches: no decision is drawn into them.
    """
    leading: dict[int, Row] = {}
    for row in stops.to_pylist():  # the query puts the most frequent of a bucket first
        leading.setdefault(row["unix_ns"], row)
    rows = list(leading.values())
    segments = [_stop(row, start) for row, start in zip(rows, _starts_of(rows, lost), strict=True)]
    seen = sorted({row["admission_stop"] for row in rows}, key=palette.reason_rank)
    keys = [[words.reason(stop), palette.reason_colour(stop)] for stop in seen]
    return {"title": "Admission stopped at", "segments": merged(segments), "keys": keys}


def _stop(row: Row, start: int) -> list[Any]:
    stop = row["admission_stop"]
    end = row["unix_ns"] + row["bucket_ns"]
    return [ms(start), ms(end), palette.reason_colour(stop), words.reason(stop)]


def _starts_of(rows: Sequence[Row], lost: Sequence[list[Any]]) -> list[int]:
    """An iteration, its decision with it, began where the one before ended.

    Unless that was unusually long ago, or records were lost since: then its own bucket is known.
    """
    ends = [row["unix_ns"] + row["bucket_ns"] for row in rows]
    usual = median([b - a for a, b in pairwise(ends)] or [0])
    before = [0, *ends[:-1]]
    return [
        last if end - last <= LONG_STEPS * usual and not _lost_between(last, end, lost) else start
        for last, end, start in zip(before, ends, (row["unix_ns"] for row in rows), strict=True)
    ]


def _lost_between(after: int, before: int, lost: Sequence[list[Any]]) -> bool:
    return any(ms(after) < until and since < ms(before) for since, until, _ in lost)


def merged(segments: list[list[Any]]) -> list[list[Any]]:
    """Neighbours of one colour as one segment."""
    joined: list[list[Any]] = []
    for segment in segments:
        if joined and joined[-1][2:] == segment[2:] and joined[-1][1] >= segment[0]:
            joined[-1][1] = segment[1]
        else:
            joined.append(list(segment))
    return joined
