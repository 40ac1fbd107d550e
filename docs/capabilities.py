"""The tables of docs/adapters.md: what each adapter lets us see, what each reason means, the knobs.

Made from the adapters' own data. Called by generate.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchscope.adapters import mini, vllm
from batchscope.adapters.vllm import frontend
from batchscope.adapters.vllm.shape import CHECKED, Shape
from batchscope.schemas.knobs import KNOBS, numbers
from batchscope.schemas.reasons import GLOBAL_REASONS, MEANINGS, Provides
from batchscope.schemas.records import RECORDS

Row = tuple[str, ...]
Table = tuple[Row, Iterable[Row]]

_TRUE: dict[str, Any] = {"str": "x", "bool": True, "int": 1}
EVERYTHING = Shape(**{field.name: _TRUE[str(field.type)] for field in fields(Shape)})
"""A vLLM with every feature in use; the watermark apart, which takes something away."""
CONDITIONS: dict[str, dict[str, Any]] = {
    "vLLM is 0.14 or later (before, both ids are one)": {"random_ids": False},
    "LoRA is in use": {"lora_slots": 0},
    "speculative decoding is in use": {"spec_tokens": 0},
    "`--cudagraph-metrics` is given": {"counts_graphs": False},
    "vLLM's statistics are on": {"log_stats": False},
    "a KV connector moves blocks beside the batches": {"hops": False},
    "it is NIXL's, fetching": {"counts_bytes": False},
}
"""Words -> what is taken away to see which fields go with it."""
WORDS = {
    "arrived.trace_lo": "the caller's trace context",
    "arrived.model": "label: model",
    "arrived.lora": "label: LoRA adapter",
    "arrived.tenant": "label: tenant",
    "arrived.priority": "priority, as the engine has it",
    "scheduled.draft_tokens": "speculated tokens among those of decodes",
    "scheduled.head_serial": "the request where the scan of the queue stopped",
    "scheduled.admission_stop": "why no more was admitted",
    "scheduled.kv_total_blocks": "size of the KV pool",
    "scheduled.kv_used_blocks": "KV blocks in use",
    "scheduled.kv_evictable_blocks": "KV blocks that are cached and unreferenced",
    "completed.at_ns": "when a batch's output arrived",
    "completed.graph_mode": "how the forward pass was launched",
    "finished.engine_queue_ns": "the engine's own queue time",
    "finished.engine_ttft_ns": "the engine's own TTFT",
    "finished.engine_e2e_ns": "the engine's own E2E",
    "finished.output_tokens": "output tokens as the engine counts them",
    "resumed.cached_tokens": "tokens of a resumed request that the prefix cache still held",
    "transfer.at_ns": "KV transfers between engines, from when to when, and whether they failed",
    "transfer.handshake_ns": "of a KV transfer: finding each other",
    "transfer.wait_ns": "of a KV transfer: waiting for its turn",
    "transfer.bytes": "of a KV transfer: bytes moved, where it was the only one on its way",
    "transfer.blocks": "of a KV transfer: blocks filled, where told",
    "blocked.at_ns": "who is passed over, since when and why",
    "delivered.at_ns": "when tokens were handed to the client's stream",
}
"""Fields whose documentation says little beside the record's."""
VERSION_SUMS = (
    *("requests_arrived", "iterations", "prefill_tokens", "decode_tokens", "output_tokens"),
    *("cached_tokens", "preemptions"),
)
_BLOCK = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The page with its tables made anew. KeyError for a table that nobody makes."""
    return _BLOCK.sub(lambda m: f"{m[1]}{_table(*TABLES[m[2]]())}{m[3]}", text)


def fields_by_adapter() -> Table:
    """Every field that an adapter may lack."""
    first, last = (".".join(map(str, bound[:2])) for bound in CHECKED)
    head = ("field", "what it is", "vLLM", "bundled engine")
    told = _documented() | WORDS
    rows = [(f"`{name}`", told[name], _vllm(name), _mini(name)) for name in mini.PROVIDES]
    return (*head[:2], f"vLLM {first} to {last}", head[3]), rows


def _mini(field: str) -> str:
    told = str(mini.PROVIDES[field])
    return f"{told}, with the torch runner" if field in mini.LAUNCH else told


def reasons() -> Table:
    """Every reason to be left out."""
    rows = [
        (f"`{reason}`", text, _reach(reason), _flags(reason)) for reason, text in MEANINGS.items()
    ]
    return ("reason", "a request waits because", "holds for", "flags of vLLM that answer it"), rows


def knobs() -> Table:
    """Every flag that answers a reason."""
    rows = [
        (f"`{k.flag}`", k.turn, ", ".join(f"`{r}`" for r in k.reasons), k.since, k.side_effect)
        for k in KNOBS
        if k.engine == "vllm"
    ]
    return ("flag", "turn", "against", "seen since", "what it costs"), rows


def versions() -> Table:
    """The same load on every version, as the tests of real engines found it."""
    kept = json.loads((Path(__file__).parent / "vllm_versions.json").read_text("utf-8"))
    head = ("vLLM", *(name.replace("_", " ") for name in VERSION_SUMS), "reached", "not there")
    return head, [_version(name, kept[name]) for name in sorted(kept, key=numbers)]


def _version(name: str, kept: dict[str, Any]) -> Row:
    sums = (str(kept[column]) for column in VERSION_SUMS)
    return (name, *sums, f"{len(kept['reached'])}", ", ".join(kept["absent"]))


TABLES: dict[str, Callable[[], Table]] = {
    "versions": versions,
    "fields": fields_by_adapter,
    "reasons": reasons,
    "knobs": knobs,
}


def _vllm(name: str) -> str:
    """exact, estimated or absent, and under which condition."""
    how = _provided()[name]
    needs = [word for word, less in CONDITIONS.items() if _provided(**less)[name] != how]
    if needs:
        return f"{how}, when {' and '.join(needs)}"
    if _provided(watermark_blocks=1)[name] != how:
        return (
            f"{how}; {_provided(watermark_blocks=1)[name]} with a KV watermark and a prefix cache"
        )
    return str(how)


def _provided(**less: Any) -> dict[str, Provides]:
    """What the adapter provides of a vLLM that lacks these features."""
    known = {field.name for field in fields(Shape)}
    shape = replace(
        EVERYTHING, **{"watermark_blocks": 0, **{k: v for k, v in less.items() if k in known}}
    )
    scheduler = SimpleNamespace(log_stats=less.get("log_stats", True))
    seen_in_front = {k: v for k, v in frontend.PROVIDES.items() if k.startswith("delivered.")}
    return {**vllm.provides(shape, scheduler), **seen_in_front}


def _documented() -> dict[str, str]:
    """record.field -> its documentation."""
    return {f"{record.name}.{f.name}": f.doc for record in RECORDS for f in record.fields}


def _reach(reason: Any) -> str:
    return "everyone who waits" if reason in GLOBAL_REASONS else "the request itself, or the head"


def _flags(reason: Any) -> str:
    found = (f"`{k.flag}` {k.turn}" for k in KNOBS if k.engine == "vllm" and reason in k.reasons)
    return ", ".join(dict.fromkeys(found))


def _table(head: Row, rows: Iterable[Row]) -> str:
    return "".join(_lines((head, tuple("---" for _ in head), *rows)))


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n"
