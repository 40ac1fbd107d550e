"""A request over two engines in one table: where its client's time went, part by part.

Pure: rows of the exporter's /request in, lines out.
"""

from __future__ import annotations

from typing import Any

from batchscope.exporter.cli.spoken import duration, plural, size

Row = dict[str, Any]
PARTS = {
    "queue_ns": "waited on the prefill engine",
    "prefill_ns": "prompt computed there, first token",
    "hop_ns": "its KV on the way to the decode engine",
    "decode_queue_ns": "waited on the decode engine",
    "decode_ns": "decoded there",
}
"""Column -> what it was; the parts sum to e2e_ns."""


def lines(one: Row, *, asked: str) -> list[str]:
    """The parts in order, each with its share of the hop's own figures where it has some."""
    tokens = plural(one["output_tokens"], "token")
    title = f"{asked}: over two engines, {tokens}, ended by {one['finish_reason'] or '-'}"
    parts = [f"{duration(one[name]):>12}  {what}" for name, what in PARTS.items()]
    parts[2] += _hop(one)
    gaps = f"TBT p50 {duration(one['tbt_p50_ns'])}, p99 {duration(one['tbt_p99_ns'])}"
    first = f"first gap {duration(one['first_gap_ns'])}"
    whole = f"TTFT {duration(one['ttft_ns'])}, {first}, then {gaps}"
    return [title, *parts, f"{duration(one['e2e_ns']):>12}  in all; {whole}", *_doubt(one)]


def _hop(one: Row) -> str:
    if one["failed"]:
        return ": it was never taken"
    told = {name: one[f"{name}_ns"] for name in ("offer", "handshake", "wait", "copy")}
    if all(ns is None for ns in told.values()):
        return ""
    spent = ", ".join(f"{name} {duration(ns)}" for name, ns in told.items())
    return f": {spent}" + (f" of {size(one['bytes'])}" if one["bytes"] is not None else "")


def _doubt(one: Row) -> list[str]:
    """How far the clocks of two rings may be apart, which the hop's length rests on."""
    if one["clock_error_ns"] is None:
        return []
    return [f"{'':>12}  the hop's length is right within {duration(one['clock_error_ns'])}"]
