"""Every record of the ring as data: one table of fields makes both struct and numpy dtype.

Facts only: integers, monotonic nanoseconds, absent rather than 0. The framing around a record (length, crc,
seq) and the file belong to ring/. Written by adapters, read by the exporter's tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 1

NULL = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFF_FFFF, "i": -(2**31), "q": -(2**63), "Q": 2**64 - 1}
"""struct code -> the value that says "absent" in an optional field."""
NULL32, NULL64 = NULL["I"], NULL["q"]


@dataclass(frozen=True)
class Field:
    """One fixed-size number: its struct code, its unit or enum, whether it may be absent."""

    name: str
    code: str
    unit: str
    doc: str
    optional: bool = False


@dataclass(frozen=True)
class Tail:
    """A variable part after the fixed one: `count` names the fixed field that holds its row count."""

    name: str
    count: str
    fields: tuple[Field, ...]
    doc: str

    @cached_property
    def size(self) -> int:
        """Bytes of one row."""
        return Struct("<" + "".join(f.code for f in self.fields)).size

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """Packed numpy dtype of one row (the reader's side only)."""
        return _dtype(self.fields, self.size)


@dataclass(frozen=True)
class Record:
    """One kind of record: prefix (kind u16, flags u16, zero u32), fixed fields, then tails in order."""

    kind: int
    name: str
    doc: str
    fields: tuple[Field, ...]
    tails: tuple[Tail, ...] = ()

    @cached_property
    def struct(self) -> Struct:
        """Packs (kind, flags, *fields) little-endian, padded to 8 bytes."""
        raw = "<HH4x" + "".join(f.code for f in self.fields)
        return Struct(f"{raw}{-Struct(raw).size % 8}x")

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The same layout as a numpy dtype (the reader's side only)."""
        prefix = (
            Field("kind", "H", "", ""),
            Field("flags", "H", "", ""),
            Field("zero", "I", "", ""),
        )
        return _dtype(prefix + self.fields, self.struct.size)


def _dtype(fields: tuple[Field, ...], size: int) -> np.dtype[np.void]:
    import numpy as np

    kinds = {"B": "u1", "H": "<u2", "I": "<u4", "i": "<i4", "q": "<i8", "Q": "<u8"}
    offsets = [Struct("<" + "".join(f.code for f in fields[:i])).size for i in range(len(fields))]
    formats = [kinds[f.code] for f in fields]
    names = [f.name for f in fields]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def _f(name: str, code: str, unit: str, doc: str = "") -> Field:
    return Field(name, code, unit, doc)


def _o(name: str, code: str, unit: str, doc: str = "") -> Field:
    return Field(name, code, unit, doc, optional=True)


_TEXT = (Field("byte", "B", "utf-8", ""),)
_SERIAL = Field("serial", "I", "serial", "the request, numbered from 1 in its ring, never reused")
_AT = Field("at_ns", "q", "ns", "instant on the engine's monotonic clock")

_REQUEST = (
    _AT,
    _o("engine_arrival_ns", "q", "ns", "the engine's own arrival stamp, its own clock"),
    _o("key", "Q", "hash", "salted 64-bit hash of the request id"),
    _o("external_key", "Q", "hash", "the same of the id that the client knows"),
    _f("trace_hi", "Q", "bits", "W3C trace id, upper half; 0 with trace_lo 0: none"),
    _f("trace_lo", "Q", "bits", "lower half"),
    _f("parent_span", "Q", "bits", "the caller's span id; 0: none"),
    _SERIAL,
    _f("prompt_tokens", "I", "tokens"),
    _o("max_tokens", "I", "tokens", "most output tokens that may come"),
    _o("priority", "i", "", "as the engine has it"),
    _f("model", "I", "string", "STRING id; 0: none"),
    _f("lora", "I", "string", "STRING id; 0: none"),
    _f("tenant", "I", "string", "STRING id; 0: none"),
    _f("n_key_text", "H", "bytes"),
    _f("n_external_text", "H", "bytes"),
    _f("n_prefix", "I", "rows"),
)
_REQUEST_TAILS = (
    Tail(
        "prefix", "n_prefix", (_f("block_hash", "Q", "hash"),), "hashed identity of prompt blocks"
    ),
    Tail("key_text", "n_key_text", _TEXT, "the id itself, only under REQUEST_IDS=plain"),
    Tail("external_text", "n_external_text", _TEXT, "likewise the client's"),
)

# flags of SCHEDULED; NO_MEMBERS also of DELIVERED
SAME_DECODES = 1
"""The decode members are those of the SCHEDULED before, in any order; the decode tail is empty."""
NO_MEMBERS = 2
"""Members were left out (detail level, record too large, shed): counts hold, members unknown."""
DUMMY = 4
"""A step without requests that the engine ran for others' sake (data-parallel ranks)."""
# flag of TRANSFER
FAILED = 1

# fmt: off
SEGMENT = Record(1, "segment", "opens a segment: it stands alone from here", (
    _f("mono_ns", "q", "ns", "clock pair: monotonic"),
    _f("unix_ns", "q", "ns", "clock pair: wall"),
    _f("iteration_id", "Q", "iteration", "the next SCHEDULED carries this id: makes loss exact"),
    _f("lap", "I", "laps"), _f("index", "I", "segment"),
))
PAD = Record(2, "pad", "ends a segment: the next record opens the next segment", ())
STRING = Record(3, "string", "interns a label in this segment", (
    _f("string", "I", "string", "1..1024"), _f("n_text", "I", "bytes"),
), (Tail("text", "n_text", _TEXT, "<= 128 bytes"),))
ARRIVED = Record(4, "arrived", "a request enters the scheduler", _REQUEST, _REQUEST_TAILS)
LIVE = Record(5, "live", "a request that was here before this segment, or before we attached", (
    *_REQUEST,
    _f("computed_tokens", "I", "tokens", "KV tokens computed so far"),
    _f("output_tokens", "I", "tokens", "tokens emitted so far"),
    _o("cached_tokens", "I", "tokens", "prefix hit at first admission"),
    _f("preemptions", "I", "preemptions"), _f("phase", "I", "Phase", "0: waiting, never scheduled"),
), _REQUEST_TAILS)
SCHEDULED = Record(6, "scheduled", "schedule() returned: what the scheduler decided", (
    _f("iteration_id", "Q", "iteration", "+1 per SCHEDULED"), _AT,
    _f("schedule_ns", "q", "ns", "spent in the scheduler's own call"),
    _o("observer_ns", "q", "ns", "our own time on this thread for the iteration before"),
    _o("budget_tokens", "I", "tokens", "cap on tokens of one iteration"),
    _f("prefill_tokens", "I", "tokens"), _f("decode_tokens", "I", "tokens"),
    _f("draft_tokens", "I", "tokens", "part of decode_tokens"),
    _f("running", "I", "requests"), _f("waiting", "I", "requests", "left waiting after the decision"),
    _f("head_serial", "I", "serial", "where the scan stopped; 0: nowhere"),
    _o("kv_total_blocks", "I", "blocks"), _o("kv_used_blocks", "I", "blocks"),
    _o("kv_evictable_blocks", "I", "blocks", "cached and unreferenced"),
    _f("n_decode", "I", "members"), _f("n_prefill", "I", "members"), _f("n_drafts", "I", "members"),
    _f("n_deferred", "H", "rows"),
    _f("admission_stop", "B", "DeferralReason", "why no more was admitted; 0: the queue was emptied"),
), (
    Tail("deferred", "n_deferred", (
        _f("requests", "I", "requests"), _f("reason", "H", "DeferralReason"), _f("position", "H", "Position"),
    ), "requests left out of this decision"),
    Tail("decode", "n_decode", (_SERIAL,), "decode members, unless SAME_DECODES"),
    Tail("prefill", "n_prefill", (
        _SERIAL, _f("start", "I", "tokens", "KV tokens computed before"), _f("tokens", "I", "tokens"),
    ), "prefill members; recompute after preemption is prefill"),
    Tail("drafts", "n_drafts", (_SERIAL, _f("tokens", "I", "tokens")), "decode members scheduled with != 1 token"),
))
COMPLETED = Record(7, "completed", "the output of a batch arrived", (
    _f("iteration_id", "Q", "iteration"), Field("at_ns", "q", "ns", "entry of the output update"),
    _o("forward_ns", "q", "ns", "launch to tokens ready, where told"),
    _o("padded_tokens", "I", "tokens", "batch size as launched"), _f("n_emitted", "I", "rows"),
    _f("graph_mode", "B", "GraphMode"),
), (Tail("emitted", "n_emitted", (_SERIAL, _f("tokens", "I", "tokens")), "members whose emission is not exactly 1"),))
PREEMPTED = Record(8, "preempted", "a running request lost its place", (
    _AT, _SERIAL, _f("lost_tokens", "I", "tokens", "computed KV given up"),
    _f("mode", "B", "PreemptMode"), _f("reason", "B", "DeferralReason"),
))
RESUMED = Record(9, "resumed", "a preempted request is admitted again", (
    _AT, _SERIAL, _f("target_tokens", "I", "tokens", "to compute before it may sample: prompt + generated"),
    _f("cached_tokens", "I", "tokens", "of these, found in the prefix cache"),
))
TRANSFER = Record(10, "transfer", "a KV hop between engines ended", (
    Field("at_ns", "q", "ns", "its end"), _f("start_ns", "q", "ns", "its begin"),
    _o("handshake_ns", "q", "ns"), _o("wait_ns", "q", "ns"), _o("bytes", "Q", "bytes"),
    _SERIAL, _o("blocks", "I", "blocks"), _f("peer", "I", "string"), _f("direction", "B", "Direction"),
))
BLOCKED = Record(11, "blocked", "a waiting request is skipped from now on", (
    _AT, _SERIAL, _f("reason", "B", "DeferralReason"),
))
UNBLOCKED = Record(12, "unblocked", "the skipping ended", (_AT, _SERIAL, _f("reason", "B", "DeferralReason")))
EMPTY = Record(13, "empty", "zero-token schedules since the last one, at most 10 records a second", (
    _AT, _f("first_ns", "q", "ns"), _f("schedule_ns", "q", "ns", "their sum"), _f("schedules", "I", "schedules"),
))
FINISHED = Record(14, "finished", "a request left", (
    _AT, _o("engine_queue_ns", "q", "ns", "the engine's own figure"),
    _o("engine_ttft_ns", "q", "ns", "likewise"), _o("engine_e2e_ns", "q", "ns", "likewise"),
    _SERIAL, _f("output_tokens", "I", "tokens", "as the engine counts them"), _f("reason", "B", "FinishReason"),
))
NOTICE = Record(15, "notice", "the adapter has something to say", (
    _AT, _f("count", "I", "", "how often so far"), _f("seam", "I", "string"),
    _f("n_text", "H", "bytes"), _f("notice", "B", "NoticeKind"),
), (Tail("text", "n_text", _TEXT, "<= 200 bytes"),))
BYE = Record(16, "bye", "the adapter leaves", (_AT,))
DELIVERED = Record(17, "delivered", "a front end handed tokens to clients (role frontend)", (
    _AT, _o("ready_at_ns", "q", "ns", "when the core had them, on its own clock"),
    _f("n_tokens", "I", "rows"),
), (Tail("tokens", "n_tokens", (_SERIAL, _f("tokens", "I", "tokens")), "per request, unless NO_MEMBERS"),))
LOSS = Record(18, "loss", "made by the reader, never written: records that nobody read", (
    _f("first_seq", "Q", "seq"), _f("records", "Q", "records"), _o("iterations", "Q", "iterations"),
    _f("rejected", "I", "records", "bytes that did not validate"),
))

RECORDS = (SEGMENT, PAD, STRING, ARRIVED, LIVE, SCHEDULED, COMPLETED, PREEMPTED, RESUMED, TRANSFER, BLOCKED,
           UNBLOCKED, EMPTY, FINISHED, NOTICE, BYE, DELIVERED, LOSS)
# fmt: on
BY_KIND = {record.kind: record for record in RECORDS}
