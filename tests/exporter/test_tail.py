"""Columns say exactly what the bytes say, checked against struct, one record at a time."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from struct import Struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.records import Script, body

from batchscope.exporter.tail import Chunk, chunk_from, chunk_of
from batchscope.schemas.records import (
    ARRIVED,
    BY_KIND,
    COMPLETED,
    DELIVERED,
    FINISHED,
    LOSS,
    NO_MEMBERS,
    NOTICE,
    PAD,
    RECORDS,
    SAME_DECODES,
    SCHEDULED,
    SEGMENT,
    STRING,
    Record,
)
from batchscope.schemas.ring import RingReader, RingWriter

Plain = tuple[tuple[int, ...], dict[str, list[tuple[int, ...]]]]


def absent(record: Record, flags: int) -> set[str]:
    """Tails without rows although their count says how many members there were."""
    if record is DELIVERED and flags & NO_MEMBERS:
        return {"tokens"}
    if record is not SCHEDULED:
        return set()
    if flags & NO_MEMBERS:
        return {"decode", "prefill", "drafts"}
    return {"decode"} if flags & SAME_DECODES else set()


def decoded(record: Record, raw: bytes) -> Plain:
    """One body by struct alone: (kind, flags, fields...) and rows of every tail."""
    fixed = record.struct.unpack_from(raw)
    named = dict(zip((f.name for f in record.fields), fixed[2:], strict=True))
    at, tails = record.struct.size, {}
    for tail in record.tails:
        row = Struct("<" + "".join(f.code for f in tail.fields))
        n = 0 if tail.name in absent(record, fixed[1]) else named[tail.count]
        tails[tail.name] = [row.unpack_from(raw, at + i * row.size) for i in range(n)]
        at += row.size * n
    return fixed, tails


def columns(chunk: Chunk, record: Record) -> dict[int, Plain]:
    """The same out of a chunk: position -> record."""
    found = chunk.of(record)
    if found is None:
        return {}
    tails = {tail.name: found.tail(tail.name) for tail in record.tails}
    fixed = [(r[0], r[1], *r[3:]) for r in found.fields.tolist()]
    return {
        at: (
            fixed[i],
            {n: rows[offsets[i] : offsets[i + 1]].tolist() for n, (offsets, rows) in tails.items()},
        )
        for i, at in enumerate(found.index.tolist())
    }


def some(rng: random.Random, record: Record) -> bytes:
    """A random body of a kind."""
    flags = rng.randrange(8)
    fields: dict[str, int] = {}
    for each in record.fields:
        size = Struct("<" + each.code).size
        fields[each.name] = int.from_bytes(rng.randbytes(size), "little", signed=each.code in "iq")
    tails: dict[str, list[tuple[int, ...]]] = {}
    for tail in record.tails:
        rows = rng.choice([0, 0, 1, 2, 37])
        fields[tail.count] = rows
        if tail.name not in absent(record, flags):
            tails[tail.name] = [tuple(rng.randrange(256) for _ in tail.fields) for _ in range(rows)]
    return body(record, flags=flags, tails=tails, **fields)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(RECORDS), max_size=40))
def test_columns_equal_a_plain_decoding(seed: int, kinds: list[Record]) -> None:
    rng = random.Random(seed)
    written = [some(rng, record) for record in kinds]
    chunk = chunk_of(written)
    read: dict[int, Plain] = {}
    for record in RECORDS:
        read |= columns(chunk, record)
    plain = [decoded(record, raw) for record, raw in zip(kinds, written, strict=True)]
    assert [read[i] for i in range(len(kinds))] == plain
    assert chunk.kind.tolist() == [record.kind for record in kinds]
    assert chunk.flags.tolist() == [each[0][1] for each in plain]
    assert (chunk.unknown, chunk.malformed) == (0, 0)


def test_a_chunk_of_nothing_is_empty() -> None:
    chunk = chunk_of([])
    assert len(chunk) == 0
    assert chunk.of(SCHEDULED) is None


def test_kinds_of_a_newer_version_are_skipped_and_counted() -> None:
    newer = (999).to_bytes(2, "little") + bytes(30)
    chunk = chunk_of([newer, body(FINISHED, serial=4), newer])
    assert chunk.unknown == 2
    finished = chunk.of(FINISHED)
    assert finished is not None
    assert finished.index.tolist() == [1]


def test_a_record_shorter_than_its_own_counts_is_left_out_and_counted() -> None:
    good = body(COMPLETED, iteration_id=1, tails={"emitted": [(1, 0), (2, 3)]})
    lying = bytearray(good)
    at = COMPLETED.dtype.fields["n_emitted"][1]  # type: ignore[index]
    lying[at : at + 4] = b"\xff\xff\xff\xff"
    chunk = chunk_of([bytes(lying), good, good[:-1], good[:16]])
    found = chunk.of(COMPLETED)
    assert found is not None
    assert found.index.tolist() == [1]
    assert found.tail("emitted")[1].tolist() == [(1, 0), (2, 3)]
    assert chunk.malformed == 3


def test_a_longer_record_of_a_newer_minor_is_read_as_far_as_we_know_it() -> None:
    chunk = chunk_of([body(FINISHED, serial=4) + bytes(24)])
    found = chunk.of(FINISHED)
    assert found is not None
    assert found.fields["serial"].tolist() == [4]


def test_texts_of_any_length_are_found() -> None:
    words = ["", "a", "ab", "abc", "abcd" * 20]
    script = Script()
    for i, word in enumerate(words):
        script.string(i + 1, word)
    found = script.chunk().of(STRING)
    assert found is not None
    offsets, rows = found.tail("text")
    text = rows.tobytes()
    edges = offsets.tolist()
    assert [text[a:b].decode() for a, b in pairwise(edges)] == words


def test_a_tail_that_does_not_exist_is_a_key_error() -> None:
    found = Script().notice(at=1, text="x").chunk().of(NOTICE)
    assert found is not None
    with pytest.raises(KeyError):
        found.tail("members")


def test_a_ring_becomes_chunks_with_its_positions(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {}, size=1)
    while not ring.grow():
        pass
    reader = RingReader(ring.path)
    while ring.segment < 2:
        ring.append(body(ARRIVED, serial=ring.segment, prompt_tokens=3))
    raw = reader.poll()
    assert raw is not None
    seq, byte_pos = reader.position
    chunk = chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=byte_pos)
    assert (chunk.ring_id, chunk.ring_uuid) == (reader.ring_id, ring.ring_uuid)
    assert (chunk.seq, chunk.byte_pos) == reader.position
    assert chunk.seqs.tolist() == list(range(1, seq))
    segments, pads = chunk.of(SEGMENT), chunk.of(PAD)
    assert segments is not None
    assert pads is not None
    assert segments.fields["index"].tolist() == [0, 1, 2]
    assert len(pads.index) == 2
    ring.close()
    reader.close()


@pytest.mark.parametrize("max_bytes", [1, 77, 1001, 4093])
def test_a_poll_of_any_size_ends_with_a_whole_record(tmp_path: Path, max_bytes: int) -> None:
    ring = RingWriter(tmp_path, {}, size=1)
    while not ring.grow():
        pass
    texts = [b"x" * n for n in range(60)]
    for n, text in enumerate(texts):
        ring.append(body(STRING, string=n, tails={"text": text}))
    reader = RingReader(ring.path)
    read: list[bytes] = []
    while (raw := reader.poll(max_bytes=max_bytes)) is not None:
        found = chunk_from(raw, 1, "", seq=0, byte_pos=0).of(STRING)
        if found is not None:
            offsets, rows = found.tail("text")
            read += [rows.tobytes()[a:b] for a, b in pairwise(offsets.tolist())]
    assert read == texts
    ring.close()
    reader.close()


def test_only_a_reader_may_report_a_loss(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {}, size=1)
    while not ring.grow():
        pass
    ring.append(body(LOSS, first_seq=1, records=10**6))
    reader = RingReader(ring.path)
    raw = reader.poll()
    assert raw is not None
    chunk = chunk_from(raw, 1, "", seq=0, byte_pos=0)
    assert chunk.of(LOSS) is None
    assert chunk.unknown == 1
    ring.close()
    reader.close()
    assert Script().loss(records=3, iterations=1).chunk().of(LOSS) is not None


def test_a_script_speaks_in_members_and_counts_tokens() -> None:
    script = Script().arrived(1, prompt=600, at=0)
    script.scheduled(at=10, prefill=[(1, 0, 512)], decode=[2, 3], drafts={3: 4}, budget=2048)
    found = script.completed(at=20, emitted={1: 0}).chunk().of(SCHEDULED)
    assert found is not None
    (row,) = found.fields
    sums = [row[name] for name in ("iteration_id", "prefill_tokens", "decode_tokens", "running")]
    assert sums == [1, 512, 5, 3]
    assert row["kv_total_blocks"] == 2**32 - 1  # not told
    assert [len(chunk) for chunk in script.chunks(2)] == [2, 2]
    with pytest.raises(TypeError, match="has no field"):
        script.completed(at=1, tokens=3)


def test_no_rows_come_after_a_text() -> None:
    """A text has any length: rows after it would not lie at a multiple of 4."""
    for record in RECORDS:
        sizes = [tail.size % 4 for tail in record.tails]
        assert sizes == sorted(sizes)
    assert all(tail.size in {1, 4, 8, 12} for record in RECORDS for tail in record.tails)


def test_codes_of_records_are_unique() -> None:
    assert len(BY_KIND) == len(RECORDS)
    assert all(np.dtype(record.dtype).itemsize == record.struct.size for record in RECORDS)
    assert all(record.struct.size % 8 == 0 for record in RECORDS)
