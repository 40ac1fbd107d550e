"""Rows as the fold hands them to sinks, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchscope.exporter.spans import LINKS
from batchscope.schemas.reasons import FinishReason, Phase, Verdict
from batchscope.schemas.records import NULL64

RING = "0123456789abcdef0123456789abcdef"
UNIX_NS = 1_700_000_000_000_000_000
MS = 1_000_000
Table = dict[str, Any]


@dataclass
class Ring:
    hello: dict[str, Any] = field(
        default_factory=lambda: {
            "ring_uuid": RING,
            "engine": "mini-0",
            "kind": "mini",
            "model_name": "llama-tiny",
            "role": "both",
            "dp_rank": None,
            "version": "1.0",
        }
    )
    ring_id: int = 1


def table(*rows: dict[str, Any]) -> Table:
    """Columns: integers as int64, the rest as lists."""
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    numeric = {n for n, v in columns.items() if all(isinstance(x, int) for x in v)}
    return {n: np.array(v, np.int64) if n in numeric else v for n, v in columns.items()}


def iteration(number: int, *, at: int, phase: Phase = Phase.DECODE, **more: Any) -> dict[str, Any]:
    """Completed at `at` ns after UNIX_NS, 10 ms after its decision, which took 1 ms."""
    return {
        "iteration_id": number,
        "unix_ns": UNIX_NS + at,
        "scheduled_at_ns": at - 10 * MS,
        "completed_at_ns": at,
        "schedule_ns": MS,
        "interval_ns": 11 * MS,
        "phase": phase.code,
        "budget_tokens": NULL64,
        "prefill_tokens": 0,
        "decode_tokens": 8,
        "decode_gap_members": 8,
        **more,
    }


def request(serial: int, *, arrived: int, finished: int, **more: Any) -> dict[str, Any]:
    """A request that ended well and met its SLO."""
    return {
        "serial": serial,
        "unix_ns": UNIX_NS + finished,
        "arrived_at_ns": arrived,
        "first_token_at_ns": arrived + 20 * MS,
        "finished_at_ns": finished,
        "request_key": 0xABC,
        "model": None,
        "prompt_tokens": 100,
        "output_tokens": 20,
        "max_tokens": NULL64,
        "finish_reason": FinishReason.STOP.code,
        "verdict": Verdict.MET.code,
        "ttft_ns": 20 * MS,
        **more,
    }


def link(iteration_id: int, serial: int, why: str = "prefill", tokens: int = 100) -> dict[str, Any]:
    code = LINKS.index(why)
    return {"iteration_id": iteration_id, "serial": serial, "link": code, "tokens": tokens}


def arrival(serial: int, *, trace: int = 0, parent: int = 0) -> dict[str, Any]:
    high, low, span = (
        int(np.uint64(bits).astype(np.int64)) for bits in (trace >> 64, trace % 2**64, parent)
    )
    return {"serial": serial, "trace_hi": high, "trace_lo": low, "parent_span": span}


def rows(
    *,
    iterations: Sequence[dict[str, Any]] = (),
    requests: Sequence[dict[str, Any]] = (),
    links: Sequence[dict[str, Any]] = (),
    arrivals: Sequence[dict[str, Any]] = (),
    gaps: Sequence[dict[str, Any]] = (),
) -> dict[str, Table]:
    tables = {
        "iterations": iterations,
        "requests": requests,
        "_links": links,
        "_arrivals": arrivals,
        "gaps": gaps,
    }
    return {name: table(*found) for name, found in tables.items()}
