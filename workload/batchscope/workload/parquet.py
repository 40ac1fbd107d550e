"""Outcomes of a replay as a Parquet file, a row a request, gaps as a list. Called by the CLI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from batchscope.workload.judged import Terms, figures
from batchscope.workload.outcome import Outcome
from batchscope.workload.trace import TraceError

_INSTANTS = ("scheduled_ns", "sent_ns", "first_ns", "last_ns", "ended_ns")
_TERMS = ("ttft", "tpot", "e2e")
_TEXTS = ("request_id", "answer_id", "status", "why", "finish_reason", "verdict")
_ASKED = ("prompt_tokens_asked", "prompt_tokens", "output_tokens_asked", "output_tokens")
_FIELDS: list[pa.Field[Any]] = [
    pa.field("ordinal", pa.int64()),
    *(pa.field(name, pa.string()) for name in _TEXTS),
    pa.field("warm_up", pa.bool_()),
    pa.field("http_status", pa.int32()),
    *(pa.field(name, pa.int64()) for name in (*_ASKED, *_INSTANTS)),
    *(pa.field(f"{term}_ns", pa.int64()) for term in _TERMS),
    pa.field("gaps_ns", pa.list_(pa.int64())),
]
SCHEMA = pa.schema(_FIELDS)
"""Instants count from the start of the trace, whose wall clock is `start_unix_ns` in the file's
metadata; NULL: not reached, not told. warm_up: left out of the figures."""


def row(outcome: Outcome, terms: Terms, *, start_ns: int) -> dict[str, Any]:
    """One request as the file has it."""
    seen = figures(outcome)
    at = {name: getattr(outcome, name) for name in _INSTANTS}
    return {
        "ordinal": outcome.arrival.ordinal,
        "warm_up": terms.warms_up(outcome, start_ns=start_ns),
        "status": str(outcome.status),
        "why": outcome.why or None,
        "verdict": terms.verdict(outcome),
        "prompt_tokens_asked": outcome.arrival.prompt_tokens,
        "output_tokens_asked": outcome.arrival.output_tokens,
        "gaps_ns": outcome.gaps_ns,
        **{name: getattr(outcome, name) for name in _SAME},
        **{f"{term}_ns": seen[term] for term in _TERMS},
        **{name: None if ns is None else ns - start_ns for name, ns in at.items()},
    }


_SAME = (
    *("request_id", "answer_id", "http_status"),
    *("finish_reason", "prompt_tokens", "output_tokens"),
)


def write(path: Path, rows: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> None:
    """Write the file; `facts` go into its metadata as JSON. TraceError when it can't be written."""
    schema = SCHEMA.with_metadata({"batchscope": json.dumps(facts, default=str)})
    try:
        pq.write_table(pa.Table.from_pylist([dict(one) for one in rows], schema), path)
    except OSError as error:
        raise TraceError(f"can't write {path}: {error.strerror or error}") from error
