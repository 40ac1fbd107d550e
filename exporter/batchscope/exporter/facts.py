"""Rows the store keeps about rings themselves (engines, configs, marks, SLOs) and client runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from batchscope.exporter import tables
from batchscope.schemas.slo import Slo

_ARROW = {
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "UINTEGER": pa.uint32(),
    "VARCHAR": pa.string(),
    "VARCHAR[]": pa.list_(pa.string()),
    "BOOLEAN": pa.bool_(),
}
_COPIED = (
    "version",
    "model_name",
    "dp_rank",
    "config_hash",
    "block_tokens",
    "param_bytes",
    "kv_bytes_per_token",
)
Row = dict[str, Any]


def table(name: str, rows: Sequence[Row]) -> pa.Table:
    """Rows of one of these tables as Arrow, without batch_id; missing keys are NULL."""
    kinds = {c: _ARROW[kind] for c, kind in tables.columns(name).items() if c != "batch_id"}
    return pa.table({c: pa.array([r.get(c) for r in rows], kind) for c, kind in kinds.items()})


def engine(hello: Mapping[str, Any], ring_id: int, *, state: str, ended_unix_ns: int | None) -> Row:
    """The engines row of a ring."""
    return {
        "ring_id": ring_id,
        "ring_uuid": hello["ring_uuid"],
        "engine": str(hello.get("engine") or "unknown"),
        "kind": str(hello.get("kind") or "unknown"),
        "role": str(hello.get("role") or "both"),
        "provides": json.dumps(hello.get("provides") or {}, sort_keys=True),
        "adapter_version": str(hello.get("adapter_version") or "unknown"),
        "attached_unix_ns": int(hello.get("unix_ns") or 0),
        "ended_unix_ns": ended_unix_ns,
        "state": state,
        **{name: hello.get(name) for name in _COPIED},
    }


def config(hello: Mapping[str, Any]) -> Row | None:
    """The configs row of a ring; None when it doesn't tell its configuration."""
    if not hello.get("config_hash"):
        return None
    canonical = json.dumps(hello.get("config") or {}, sort_keys=True, separators=(",", ":"))
    return {"config_hash": hello["config_hash"], "config": canonical}


def mark(kind: str, text: str, *, unix_ns: int, engine: str | None = None) -> Row:
    """A point in time worth a line on every chart."""
    return {"unix_ns": unix_ns, "kind": kind, "engine": engine, "text": text}


def slo(judged: Slo, *, since_unix_ns: int) -> Row:
    """An SLO that comes into force."""
    named = {"name": judged.name, "version": judged.version, "targets": str(judged)}
    return {**named, "since_unix_ns": since_unix_ns}
