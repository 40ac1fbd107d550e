"""Tables under the Iterations panes: answers with the columns and units a person reads."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa

from batchscope.dashboard import words
from batchscope.dashboard.figures import ms

Row = dict[str, Any]


def iteration_table(answer: pa.Table) -> pd.DataFrame:
    """One row per iteration of slowest_iterations, durations in ms."""
    return pd.DataFrame([_iteration(row) for row in answer.to_pylist()], columns=list(_ITERATION))


_ITERATION = (
    "iteration",
    "interval ms",
    "host ms",
    "prefill tokens",
    "decode tokens",
    "budget",
    "prefills",
    "decodes",
    "waiting",
    "stopped at",
)


def _iteration(row: Row) -> Row:
    values = (
        row["iteration_id"],
        _ms(row["interval_ns"]),
        _ms(row["host_ns"]),
        row["prefill_tokens"],
        row["decode_tokens"],
        row["budget_tokens"],
        row["prefill_members"],
        row["decode_members"],
        row["waiting"],
        words.reason(row["admission_stop"]),
    )
    return dict(zip(_ITERATION, values, strict=True))


def member_table(answer: pa.Table) -> pd.DataFrame:
    """One row per member of iteration_members."""
    return pd.DataFrame([_member(row) for row in answer.to_pylist()], columns=list(_MEMBER))


_MEMBER = ("request", "key", "phase", "tokens", "context", "emitted", "prompt", "preempted")


def _member(row: Row) -> Row:
    phase = "recompute" if row["recompute"] else row["phase"]
    values = (
        f"#{row['serial']}",
        row["request_key"],
        phase,
        row["tokens"],
        row["context_tokens"],
        row["emitted_tokens"],
        row["prompt_tokens"],
        row["preemptions"],
    )
    return dict(zip(_MEMBER, values, strict=True))


def _ms(ns: int | None) -> float | None:
    return None if ns is None else round(ms(ns), 2)
