"""What a stretch of a ring says, read record by record with the standard library alone.

For `batchscope snapshot --show`: a minute of one ring. The exporter's fold is the real thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, NoticeKind, words
from batchscope.schemas.ring import RingReader
from batchscope.schemas.ring.layout import FRAME, FRAME_BYTES

REASONS, NOTICES = words(DeferralReason), words(NoticeKind)
_KIND = Struct("<HH")
_ROW = {
    tail.fields: Struct("<" + "".join(f.code for f in tail.fields))
    for record in r.RECORDS
    for tail in record.tails
}


@dataclass
class Batch:
    """One decision: its fixed fields, prefill rows (serial, start, tokens), decode serials; None:
    members were not recorded. `completed_at_ns` None: it never came back, or nobody knows (`cut`:
    the record broke off meanwhile).
    """

    fields: dict[str, Any]
    prefill: list[tuple[int, ...]] | None
    decode: list[int] | None
    completed_at_ns: int | None = None
    cut: bool = False

    @property
    def in_flight(self) -> bool:
        """Whether it was still out when the record ends."""
        return self.completed_at_ns is None and not self.cut

    @property
    def took_ns(self) -> int | None:
        """From the decision to its output."""
        done = self.completed_at_ns
        return None if done is None else int(done - self.fields["at_ns"])


@dataclass
class Tape:
    """Everything that was heard. `names`: serial -> what is known of a request; `live`: who is
    still there; `decodes`: members of the last decision, None where they are unknown.
    """

    batches: dict[int, Batch] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    deferrals: Counter[str] = field(default_factory=Counter)
    notices: list[tuple[int, str, str]] = field(default_factory=list)
    decodes: list[int] | None = None
    first_ns: int | None = None
    last_ns: int | None = None


def read(reader: RingReader) -> Tape:
    """From the reader's position to the end of what is there."""
    tape = Tape()
    while (raw := reader.poll()) is not None:
        for offset in raw.offsets:
            length, _, _ = FRAME.unpack_from(raw.data, offset)
            _take(tape, raw.data[offset + FRAME_BYTES : offset + length])
    return tape


def _take(tape: Tape, body: bytes) -> None:
    kind, flags = _KIND.unpack_from(body)
    record = r.BY_KIND.get(kind)
    if record is None:
        return
    values = record.struct.unpack_from(body)[2:]
    fields = {f.name: _known(f, v) for f, v in zip(record.fields, values, strict=True)}
    if (at := fields.get("at_ns")) is not None:
        tape.first_ns = at if tape.first_ns is None else tape.first_ns
        tape.last_ns = at
    if (heard := HEARD.get(record.name)) is not None:
        heard(tape, fields, dict(_tails(record, fields, flags, body)), flags)


def _known(spec: r.Field, value: int) -> int | None:
    return None if spec.optional and value == r.NULL[spec.code] else value


def _tails(
    record: r.Record, fields: dict[str, Any], flags: int, body: bytes
) -> Iterator[tuple[str, Any]]:
    """(name, rows as tuples, or text as bytes); members that were left out have no rows."""
    at = record.struct.size
    for tail in record.tails:
        rows = 0 if _left_out(record, tail.name, flags) else fields[tail.count]
        raw, at = body[at : at + rows * tail.size], at + rows * tail.size
        text = tail.fields[0].name == "byte"
        yield tail.name, raw if text else list(_ROW[tail.fields].iter_unpack(raw))


def _left_out(record: r.Record, tail: str, flags: int) -> bool:
    if record is not r.SCHEDULED or tail == "deferred":
        return False
    return bool(flags & (r.NO_MEMBERS | (r.SAME_DECODES if tail == "decode" else 0)))


def _arrived(tape: Tape, fields: dict[str, Any], tails: dict[str, Any], _: int) -> None:
    _name(tape, fields, tails)
    tape.counts["arrived"] += 1


def _name(tape: Tape, fields: dict[str, Any], tails: dict[str, Any], _: int = 0) -> None:
    text = (tails["external_text"] or tails["key_text"]).decode("utf-8", "replace")
    keys = (fields["external_key"], fields["key"])
    key = next((f"{key:016x}" for key in keys if key is not None), "")
    tape.names[fields["serial"]] = text or key
    tape.live.add(fields["serial"])


def _scheduled(tape: Tape, fields: dict[str, Any], tails: dict[str, Any], flags: int) -> None:
    hidden = bool(flags & r.NO_MEMBERS)
    if hidden:
        tape.decodes = None
    elif not flags & r.SAME_DECODES:
        tape.decodes = [serial for (serial,) in tails["decode"]]
    prefill = None if hidden else tails["prefill"]
    tape.batches[fields["iteration_id"]] = Batch(fields, prefill, tape.decodes)
    tape.counts.update({n: fields[n] for n in ("prefill_tokens", "decode_tokens")})
    for requests, reason, _ in tails["deferred"]:
        tape.deferrals[REASONS[reason] or "unknown"] += requests


def _completed(tape: Tape, fields: dict[str, Any], _: dict[str, Any], __: int) -> None:
    if (batch := tape.batches.get(fields["iteration_id"])) is not None:
        batch.completed_at_ns = fields["at_ns"]


def _finished(tape: Tape, fields: dict[str, Any], _: dict[str, Any], __: int) -> None:
    tape.live.discard(fields["serial"])
    tape.counts["finished"] += 1


def _preempted(tape: Tape, *_: Any) -> None:
    tape.counts["preemptions"] += 1


def _lost(tape: Tape, fields: dict[str, Any], *_: Any) -> None:
    tape.counts["lost_records"] += fields["records"]
    _break_off(tape)


def _break_off(tape: Tape, *_: Any) -> None:
    """A goodbye or a loss: whoever is still there afterwards is announced again."""
    tape.live.clear()
    tape.decodes = None
    for batch in tape.batches.values():
        batch.cut = batch.cut or batch.in_flight


def _noticed(tape: Tape, fields: dict[str, Any], tails: dict[str, Any], _: int) -> None:
    text = tails["text"].decode("utf-8", "replace")
    tape.notices.append((fields["at_ns"], str(NOTICES[fields["notice"]]), text))


HEARD: dict[str, Callable[..., None]] = {
    "arrived": _arrived,
    "live": _name,
    "scheduled": _scheduled,
    "completed": _completed,
    "finished": _finished,
    "preempted": _preempted,
    "loss": _lost,
    "bye": _break_off,
    "notice": _noticed,
}
