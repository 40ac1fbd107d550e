"""A tiny language for streams of records: one method per record, instants are exact integers.

    s = Script()
    s.arrived(1, prompt=600, at=0)
    s.scheduled(at=10, prefill=[(1, 0, 512)], budget=512)
    s.completed(at=20, emitted={1: 0})
    rows = RingFold(s.hello, s.ring_id, slo=None).fold(s.chunk())

Every method appends one record, returns the Script, and takes any field of its record by its own
name (`kv_total_blocks=64`) beside the short ones; optional fields not given are NULL, the rest 0.
Words of an enumeration may be given as such: `reason="stop"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any

from batchscope.exporter.tail import Chunk, chunk_of
from batchscope.schemas import records as r
from batchscope.schemas.reasons import (
    DeferralReason,
    Direction,
    FinishReason,
    GraphMode,
    NoticeKind,
    Phase,
    Position,
    PreemptMode,
    Word,
)

UNIX_NS = 1_700_000_000_000_000_000
"""Wall clock at monotonic 0 of every script."""

Rows = Iterable[Sequence[int]]


def body(
    record: r.Record, *, flags: int = 0, tails: Mapping[str, Any] | None = None, **given: Any
) -> bytes:
    """One record's body from its fields by name. Tails: lists of tuples, or bytes for texts."""
    tails = tails or {}
    counts = {tail.count: len(tails.get(tail.name, ())) for tail in record.tails}
    known = {field.name: r.NULL[field.code] if field.optional else 0 for field in record.fields}
    if unknown := given.keys() - known.keys():
        raise TypeError(f"{record.name} has no field {sorted(unknown)}")
    values = {**known, **counts, **{name: v for name, v in given.items() if v is not None}}
    fixed = record.struct.pack(record.kind, flags, *(values[f.name] for f in record.fields))
    return fixed + b"".join(_rows(tail, tails.get(tail.name, ())) for tail in record.tails)


def _rows(tail: r.Tail, rows: bytes | Rows) -> bytes:
    if isinstance(rows, bytes):
        return rows
    row = Struct("<" + "".join(field.code for field in tail.fields))
    return b"".join(row.pack(*each) for each in rows)


def code(kind: type[Word], word: str | int | None) -> int:
    """Wire code of a word; None is 0, a number stays."""
    if word is None:
        return 0
    return word if isinstance(word, int) else kind(word).code


class Script:
    """A ring's records, from SEGMENT on; `bodies` so far, `iteration` the last id given."""

    def __init__(self, *, ring_id: int = 1, **hello: Any) -> None:
        self.ring_id = ring_id
        self.ring_uuid = f"{ring_id:016x}" + "0" * 16
        self.hello = _hello(self.ring_uuid, hello)
        self.bodies: list[bytes] = []
        self.iteration = 0
        self._segments = 0
        self.segment(at=0)

    def add(
        self,
        record: r.Record,
        *,
        flags: int = 0,
        tails: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Script:
        """Any record at all."""
        self.bodies.append(body(record, flags=flags, tails=tails, **fields))
        return self

    def segment(self, *, at: int, unix_ns: int | None = None) -> Script:
        """The next segment begins: whatever was announced must be announced again."""
        lap, index = divmod(self._segments, 16)
        self._segments += 1
        wall = UNIX_NS + at if unix_ns is None else unix_ns
        nxt = self.iteration + 1
        return self.add(r.SEGMENT, mono_ns=at, unix_ns=wall, iteration_id=nxt, lap=lap, index=index)

    def pad(self) -> Script:
        """End of a segment."""
        return self.add(r.PAD)

    def string(self, string: int, text: str) -> Script:
        """STRING `string` means `text` in this segment."""
        return self.add(r.STRING, string=string, tails={"text": text.encode()})

    def arrived(
        self, serial: int, *, prompt: int, at: int, max_tokens: int | None = None, **fields: Any
    ) -> Script:
        """Request `serial` enters; its key is 1000 + serial unless `key=` says otherwise."""
        return self._request(r.ARRIVED, serial, prompt, at, {"max_tokens": max_tokens, **fields})

    def live(
        self,
        serial: int,
        *,
        prompt: int,
        at: int,
        computed: int = 0,
        output: int = 0,
        phase: str | int | None = None,
        **fields: Any,
    ) -> Script:
        """Request `serial` was here before: `computed` KV tokens, `output` tokens emitted."""
        more = {"computed_tokens": computed, "output_tokens": output, "phase": code(Phase, phase)}
        return self._request(r.LIVE, serial, prompt, at, {**more, **fields})

    def _request(
        self, record: r.Record, serial: int, prompt: int, at: int, fields: dict[str, Any]
    ) -> Script:
        names = ("prefix", "key_text", "external_text")
        tails = {name: fields.pop(name) for name in names if name in fields}
        if "prefix" in tails:
            tails["prefix"] = [(block,) for block in tails["prefix"]]
        fields.setdefault("key", 1000 + serial)
        return self.add(
            record, tails=tails, serial=serial, prompt_tokens=prompt, at_ns=at, **fields
        )

    def scheduled(
        self,
        *,
        at: int,
        prefill: Rows = (),
        decode: Sequence[int] | None = (),
        drafts: Mapping[int, int] | None = None,
        deferred: Sequence[tuple[int, str | int] | tuple[int, str | int, str | int]] = (),
        budget: int | None = None,
        stop: str | int | None = None,
        head: int = 0,
        kv: tuple[int, int, int] | None = None,
        same: int | None = None,
        flags: int = 0,
        **fields: Any,
    ) -> Script:
        """One decision. `prefill` = (serial, start, tokens) each, `drafts` = serial -> tokens.

        `same=n` says "the n decode members of the decision before" instead of `decode`, serials.
        `deferred` = (requests, reason[, position]) each, `kv` = (total, used, evictable) blocks.
        Token sums follow from the members.
        """
        self.iteration += 1
        prefill, drafts = [tuple(row) for row in prefill], dict(drafts or {})
        serials = [] if same is not None else list(decode or ())
        n_decode = len(serials) if same is None else same
        sums = {
            "prefill_tokens": sum(row[2] for row in prefill),
            "decode_tokens": n_decode + sum(n - 1 for n in drafts.values()),
            "draft_tokens": sum(max(n - 1, 0) for n in drafts.values()),
            "running": n_decode + len(prefill),
        }
        if kv is not None:
            names = ("kv_total_blocks", "kv_used_blocks", "kv_evictable_blocks")
            sums.update(zip(names, kv, strict=True))
        tails = {
            "deferred": [_deferred(*row) for row in deferred],
            "decode": [(serial,) for serial in serials],
            "prefill": prefill,
            "drafts": sorted(drafts.items()),
        }
        values = {
            "iteration_id": self.iteration,
            "at_ns": at,
            "budget_tokens": budget,
            "admission_stop": code(DeferralReason, stop),
            "head_serial": head,
            "n_decode": n_decode,
            **sums,
            **fields,
        }
        flags |= r.SAME_DECODES if same is not None else 0
        return self.add(r.SCHEDULED, flags=flags, tails=tails, **values)

    def completed(
        self,
        *,
        at: int,
        iteration: int | None = None,
        emitted: Mapping[int, int] | None = None,
        graph: str | int | None = None,
        **fields: Any,
    ) -> Script:
        """Output of `iteration` (default: the last); `emitted` = serial -> tokens where not 1."""
        values = {
            "iteration_id": self.iteration if iteration is None else iteration,
            "at_ns": at,
            "graph_mode": code(GraphMode, graph),
            **fields,
        }
        return self.add(r.COMPLETED, tails={"emitted": list((emitted or {}).items())}, **values)

    def preempted(
        self,
        serial: int,
        *,
        at: int,
        lost: int = 0,
        reason: str | int | None = "kv_blocks",
        mode: str = "recompute",
    ) -> Script:
        """A running request lost its place and `lost` computed tokens."""
        return self.add(
            r.PREEMPTED,
            serial=serial,
            at_ns=at,
            lost_tokens=lost,
            mode=code(PreemptMode, mode),
            reason=code(DeferralReason, reason),
        )

    def resumed(self, serial: int, *, at: int, target: int, cached: int = 0) -> Script:
        """It is admitted again and has `target` tokens to compute, `cached` of them found."""
        return self.add(
            r.RESUMED, serial=serial, at_ns=at, target_tokens=target, cached_tokens=cached
        )

    def transfer(
        self, serial: int, *, start: int, at: int, direction: str = "in", **fields: Any
    ) -> Script:
        """A KV hop from `start` to `at`."""
        towards = code(Direction, direction)
        return self.add(
            r.TRANSFER, serial=serial, start_ns=start, at_ns=at, direction=towards, **fields
        )

    def blocked(self, serial: int, *, at: int, reason: str | int) -> Script:
        """Skipped from now on."""
        return self.add(r.BLOCKED, serial=serial, at_ns=at, reason=code(DeferralReason, reason))

    def unblocked(self, serial: int, *, at: int, reason: str | int) -> Script:
        """No longer."""
        return self.add(r.UNBLOCKED, serial=serial, at_ns=at, reason=code(DeferralReason, reason))

    def empty(self, *, at: int, first: int, schedules: int = 1, schedule_ns: int = 0) -> Script:
        """Zero-token schedules from `first` to `at`."""
        return self.add(
            r.EMPTY, at_ns=at, first_ns=first, schedules=schedules, schedule_ns=schedule_ns
        )

    def finished(
        self, serial: int, *, at: int, output: int, reason: str | int = "stop", **fields: Any
    ) -> Script:
        """A request left with `output` tokens as the engine counts them."""
        why = code(FinishReason, reason)
        return self.add(
            r.FINISHED, serial=serial, at_ns=at, output_tokens=output, reason=why, **fields
        )

    def notice(
        self, *, at: int, kind: str = "fault", text: str = "", count: int = 1, seam: int = 0
    ) -> Script:
        """The adapter says something."""
        tails = {"text": text.encode()}
        what = code(NoticeKind, kind)
        return self.add(r.NOTICE, tails=tails, at_ns=at, count=count, seam=seam, notice=what)

    def bye(self, *, at: int) -> Script:
        """The adapter leaves."""
        return self.add(r.BYE, at_ns=at)

    def delivered(self, *, at: int, ready: int, tokens: Mapping[int, int]) -> Script:
        """A front end handed out tokens."""
        return self.add(
            r.DELIVERED, tails={"tokens": list(tokens.items())}, at_ns=at, ready_at_ns=ready
        )

    def loss(self, *, records: int, iterations: int | None, rejected: int = 0) -> Script:
        """What a reader says of records nobody read; that many `iterations` ids are skipped."""
        self.iteration += iterations or 0
        return self.add(
            r.LOSS,
            first_seq=len(self.bodies) + 1,
            records=records,
            iterations=iterations,
            rejected=rejected,
        )

    def chunk(self) -> Chunk:
        """Everything as one chunk."""
        return self.chunks()[0]

    def chunks(self, *splits: int) -> list[Chunk]:
        """Everything, cut before the records with these indices (0 is the SEGMENT)."""
        edges = [0, *sorted(splits), len(self.bodies)]
        pairs = pairwise(edges)
        return [
            chunk_of(
                self.bodies[a:b],
                ring_id=self.ring_id,
                ring_uuid=self.ring_uuid,
                first_seq=1 + a,
            )
            for a, b in pairs
        ]

    def __len__(self) -> int:
        return len(self.bodies)


def _deferred(requests: int, reason: str | int, position: str | int = "global") -> tuple[int, ...]:
    return requests, code(DeferralReason, reason), code(Position, position)


def _hello(ring_uuid: str, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": r.SCHEMA_VERSION,
        "ring_uuid": ring_uuid,
        "kind": "mini",
        "version": "1",
        "engine": "mini",
        "model_name": "tiny",
        "role": "both",
        "dp_rank": 0,
        "config": {},
        "config_hash": "0",
        "block_tokens": 16,
        "provides": {},
        "mono_ns": 0,
        "unix_ns": UNIX_NS,
        "pid": 1,
        "level": 2,
        **given,
    }
