"""A frozen ring in a few lines: what was going on, and which batch was in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchscope.exporter.cli import tape
from batchscope.exporter.cli.spoken import count, duration, plural
from batchscope.exporter.cli.tape import Batch, Tape
from batchscope.schemas.ring import RingReader

MOST_NAMED = 12
SLOWEST = 5
_HELLO = ("engine", "kind", "version", "model_name", "role", "dp_rank", "pid")
_COUNTED = ("arrived", "finished", "preemptions", "prefill_tokens", "decode_tokens", "lost_records")
_LAST = ("running", "waiting", "kv_used_blocks", "kv_evictable_blocks", "kv_total_blocks")


def summary(ring: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Everything that `lines` says, as plain values; durations in ns. RingError, OSError."""
    reader = RingReader(ring)
    try:
        reader.seek(unix_ns=0)
        heard = tape.read(reader)
        mono_ns, unix_ns = reader.clock_pair
        hello = {name: reader.hello.get(name) for name in _HELLO}
    finally:
        reader.close()
    ends = {"from_unix_ns": heard.first_ns, "to_unix_ns": heard.last_ns}
    return {
        **hello,
        **{name: about.get(name) for name in ("taken_unix_ns", "alive", "seconds")},
        **{k: None if at is None else unix_ns + at - mono_ns for k, at in ends.items()},
        **_figures(heard),
    }


def lines(seen: dict[str, Any]) -> list[str]:
    """For a person."""
    parts = (_who, _traffic, _state, _slow, _flight, _said)
    return [line for part in parts for line in part(seen)]


def _figures(heard: Tape) -> dict[str, Any]:
    batches = list(heard.batches.values())
    done = sorted((b for b in batches if b.took_ns is not None), key=lambda b: -(b.took_ns or 0))
    last = batches[-1].fields if batches else {}
    return {
        "iterations": len(batches),
        **{name: heard.counts[name] for name in _COUNTED},
        "live": len(heard.live),
        "deferrals": dict(heard.deferrals.most_common()),
        "last": {name: last.get(name) for name in _LAST},
        "slowest": [_brief(batch) for batch in done[:SLOWEST]],
        "in_flight": [_members(heard, b) for b in batches if b.in_flight],
        "notices": [{"kind": kind, "text": text} for _, kind, text in heard.notices],
    }


def _brief(batch: Batch) -> dict[str, Any]:
    names = ("iteration_id", "prefill_tokens", "decode_tokens")
    return {name: batch.fields[name] for name in names} | {"took_ns": batch.took_ns}


def _members(heard: Tape, batch: Batch) -> dict[str, Any]:
    """A batch that never came back, by the names of its requests."""
    since = None if heard.last_ns is None else heard.last_ns - batch.fields["at_ns"]
    prefill, decode = batch.prefill, batch.decode
    return {
        **{k: batch.fields[k] for k in ("iteration_id", "prefill_tokens", "decode_tokens")},
        "last_record_after_ns": since,
        "prefill": prefill
        and [
            {"serial": serial, "id": heard.names.get(serial), "start": start, "tokens": tokens}
            for serial, start, tokens in prefill
        ],
        "decode": decode and [{"serial": s, "id": heard.names.get(s)} for s in decode],
    }


def _who(seen: dict[str, Any]) -> Iterator[str]:
    version = " ".join(str(seen[k]) for k in ("kind", "version") if seen[k])
    alive = {True: "alive", False: "dead"}.get(seen["alive"], "state unknown")
    rank = f", rank {seen['dp_rank']}" if seen["dp_rank"] else ""
    yield f"engine     {seen['engine']} ({version}, {seen['model_name']}{rank}), {alive} when taken"
    if seen["from_unix_ns"] is not None:
        span = duration(seen["to_unix_ns"] - seen["from_unix_ns"])
        first, last = (_clock(seen[f"{end}_unix_ns"]) for end in ("from", "to"))
        yield f"span       {span}, from {first} to {last}"


def _clock(unix_ns: int) -> str:
    seconds, rest = divmod(unix_ns, 1_000_000_000)
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"{day}.{rest // 1_000_000:03d} UTC"


def _traffic(seen: dict[str, Any]) -> Iterator[str]:
    tokens = (
        f"prefill {count(seen['prefill_tokens'])}, decode {count(seen['decode_tokens'])} tokens"
    )
    yield f"batches    {plural(seen['iterations'], 'iteration')}, {tokens}"
    kept = f"{count(seen['arrived'])} arrived, {count(seen['finished'])} finished"
    rest = f"{count(seen['live'])} still there, {plural(seen['preemptions'], 'preemption')}"
    yield f"requests   {kept}, {rest}"
    if seen["lost_records"]:
        yield f"lost       {plural(seen['lost_records'], 'record')}: the counts are of the rest"


def _state(seen: dict[str, Any]) -> Iterator[str]:
    last = seen["last"]
    if last["running"] is not None:
        kv = f"KV {count(last['kv_used_blocks'])} of {count(last['kv_total_blocks'])} blocks used"
        yield f"at the end {last['running']} running, {last['waiting']} waiting, {kv}"
    left_out = ", ".join(f"{reason} {count(n)}" for reason, n in seen["deferrals"].items())
    yield f"left out   {left_out or 'nobody'} (requests x decisions)"


def _slow(seen: dict[str, Any]) -> Iterator[str]:
    for i, one in enumerate(seen["slowest"]):
        batch = f"prefill {count(one['prefill_tokens'])}, decode {count(one['decode_tokens'])}"
        head = "slowest" if i == 0 else ""
        took = duration(one["took_ns"])
        yield f"{head:10} iteration {one['iteration_id']}: {took} from decision to output; {batch}"


def _flight(seen: dict[str, Any]) -> Iterator[str]:
    if not seen["in_flight"]:
        yield "in flight  nothing"
    for batch in seen["in_flight"]:
        yield f"in flight  iteration {batch['iteration_id']}: {_batch(batch)}"
        for member in (batch["prefill"] or [])[:MOST_NAMED]:
            span = f"{plural(member['tokens'], 'token')} from {count(member['start'])} on"
            yield f"{'':10} prefill of {_request(member)}: {span}"
        if batch["decode"]:
            named = ", ".join(map(_request, batch["decode"][:MOST_NAMED]))
            more = len(batch["decode"]) - MOST_NAMED
            yield f"{'':10} decode of {named}{f' and {more} more' if more > 0 else ''}"


def _batch(batch: dict[str, Any]) -> str:
    tokens = f"prefill {count(batch['prefill_tokens'])}, decode {count(batch['decode_tokens'])}"
    unknown = "" if batch["decode"] is not None else " (members were not recorded)"
    return f"{tokens} tokens{unknown}"


def _request(member: dict[str, Any]) -> str:
    return f"{member['id'] or 'a request'} (serial {member['serial']})"


def _said(seen: dict[str, Any]) -> Iterator[str]:
    for notice in seen["notices"]:
        yield f"notice     {notice['kind']}: {notice['text']}"
