"""What a reader returns: all that was written, in order, or an exact account of the rest."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.records import body

from batchscope.schemas.records import FINISHED, LOSS, SCHEDULED, SEGMENT
from batchscope.schemas.ring import (
    Raw,
    RingFormatError,
    RingReader,
    RingVersionError,
    RingWriter,
)
from batchscope.schemas.ring.layout import FRAME, FRAME_BYTES, HEADER_BYTES, HINT, HINT_BYTE

Open = Callable[..., RingReader]


def finished(serial: int) -> bytes:
    return body(FINISHED, serial=serial, output_tokens=serial)


def everything(reader: RingReader, *, polls: int = 10_000) -> list[Raw]:
    """All that a reader has to say, bounded."""
    raws: list[Raw] = []
    for _ in range(polls):
        if (raw := reader.poll()) is None:
            return raws
        raws.append(raw)
    raise AssertionError("the reader never came to an end")


def bodies(raw: Raw) -> list[bytes]:
    lengths = [FRAME.unpack_from(raw.data, at)[0] for at in raw.offsets]
    pairs = zip(raw.offsets, lengths, strict=True)
    return [raw.data[at + FRAME_BYTES : at + length] for at, length in pairs]


def kind(record: bytes) -> int:
    return int.from_bytes(record[:2], "little")


def loss(raw: Raw) -> tuple[int, ...]:
    (record,) = bodies(raw)
    return tuple(LOSS.struct.unpack(record))[2:]


def schedule(writer: RingWriter, n: int) -> None:
    """n decisions, as an adapter writes them."""
    for _ in range(n):
        writer.append(body(SCHEDULED, iteration_id=writer.iteration_id, at_ns=0))
        writer.iteration_id += 1


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_records_come_back_as_they_were_written(writer: RingWriter, open_reader: Open) -> None:
    reader = open_reader(writer.path)
    sent = [finished(i) for i in range(100)]
    for each in sent:
        writer.append(each)
    (raw,) = everything(reader)
    assert bodies(raw)[1:] == sent
    assert kind(bodies(raw)[0]) == SEGMENT.kind
    assert raw.seqs == range(1, 102)
    assert reader.position[0] == 102


def test_polling_between_writes_gives_the_same_stream(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    seen: list[bytes] = []
    for i in range(8000):
        writer.append(finished(i))
        if i % 7 == 0:
            seen += [b for raw in everything(reader) for b in bodies(raw)]
    seen += [b for raw in everything(reader) for b in bodies(raw)]
    assert writer.segment > 16  # more than a lap
    assert [b for b in seen if kind(b) == FINISHED.kind] == [finished(i) for i in range(8000)]


def test_a_segment_switch_lies_within_one_poll(writer: RingWriter, open_reader: Open) -> None:
    while writer.segment < 3:
        writer.append(finished(1))
    (raw,) = everything(open_reader(writer.path))
    opened = [b for b in bodies(raw) if kind(b) == SEGMENT.kind]
    assert len(opened) == 4
    assert [SEGMENT.struct.unpack(b)[-1] for b in opened] == [0, 1, 2, 3]


def test_a_poll_is_bounded_but_never_stuck_on_one_large_record(
    writer: RingWriter, open_reader: Open
) -> None:
    large = finished(1) + bytes(writer.largest // 2)
    for _ in range(3):
        writer.append(large)
    raws = everything(open_reader(writer.path), polls=10)
    assert sum(len(raw.offsets) for raw in raws) == 4
    small = open_reader(writer.path)
    sizes = [len(raw.offsets) for raw in iter(lambda: small.poll(max_bytes=1), None)]
    assert sizes == [1, 1, 1, 1]


def test_a_position_continues_where_another_reader_stopped(
    writer: RingWriter, open_reader: Open
) -> None:
    writer.append(finished(1))
    first = open_reader(writer.path)
    everything(first)
    writer.append(finished(2))
    second = open_reader(writer.path, position=first.position)
    assert [bodies(raw) for raw in everything(second)] == [[finished(2)]]


def test_two_readers_do_not_disturb_each_other(writer: RingWriter, open_reader: Open) -> None:
    one, other = open_reader(writer.path), open_reader(writer.path)
    for i in range(3000):
        writer.append(finished(i))
        if i % 100 == 0:
            one.poll()
    assert one.position[0] > other.position[0] == 1
    everything(one)
    everything(other)
    assert one.position == other.position


def test_a_loss_is_exact_in_records_and_iterations(writer: RingWriter, open_reader: Open) -> None:
    reader = open_reader(writer.path)
    schedule(writer, 10)
    everything(reader)
    seq = reader.position[0]
    schedule(writer, 8000)
    lost, after, *rest = everything(reader)
    assert lost.is_loss
    still_there = [b for raw in (after, *rest) for b in bodies(raw) if kind(b) == SEGMENT.kind]
    assert len(still_there) == 16  # the oldest segment that is left, not the newest
    opening = bodies(after)[0]
    assert kind(opening) == SEGMENT.kind
    next_iteration = SEGMENT.struct.unpack(opening)[4]
    assert loss(lost) == (seq, after.first_seq - seq, next_iteration - 11, 0)
    (first,) = (b for b in bodies(after)[1:2] if kind(b) == SCHEDULED.kind)
    assert SCHEDULED.struct.unpack_from(first)[2] == next_iteration


def test_what_was_lost_and_read_is_all_that_was_written(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    read = lost = iterations = 0
    for burst in (10, 5000, 3, 9000, 1):
        schedule(writer, burst)
        for raw in everything(reader):
            if raw.is_loss:
                _, records, missed, _ = loss(raw)
                lost, iterations = lost + records, iterations + missed
            else:
                read += len(raw.offsets)
                iterations += sum(kind(b) == SCHEDULED.kind for b in bodies(raw))
    assert lost > 0
    assert read + lost == reader.position[0] - 1
    assert iterations == writer.iteration_id - 1 == 14_014


def test_a_reader_that_comes_late_counts_what_it_missed(
    writer: RingWriter, open_reader: Open
) -> None:
    schedule(writer, 8000)
    first = everything(open_reader(writer.path))[0]
    assert first.is_loss
    assert loss(first)[0] == 1


def test_a_loss_after_a_restart_is_exact_in_iterations_when_told_where(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    schedule(writer, 10)
    everything(reader)
    assert reader.iteration == 11
    schedule(writer, 8000)
    told = open_reader(writer.path, position=reader.position, iteration=reader.iteration)
    untold = open_reader(writer.path, position=reader.position)
    here, there, unknown = (everything(each)[0] for each in (reader, told, untold))
    assert loss(here) == loss(there)
    assert loss(unknown)[2] == 2**64 - 1  # absent, not 0


def test_damage_ends_after_three_polls_and_goes_on_with_the_next_segment(
    writer: RingWriter, open_reader: Open
) -> None:
    for i in range(5):
        writer.append(finished(i))
    clock = itertools.count(0, 50_000_000)
    reader = open_reader(writer.path, mono=lambda: next(clock))
    everything(reader)
    seq, at = reader.position
    writer.append(finished(6))
    while writer.segment == 0:
        writer.append(finished(7))
    overwrite(writer.path, HEADER_BYTES + at + 20, b"\xff")
    assert [reader.poll(), reader.poll()] == [None, None]
    lost = reader.poll()
    assert lost is not None
    following = reader.poll()
    assert following is not None
    assert loss(lost) == (seq, following.first_seq - seq, 0, 1)
    assert kind(bodies(following)[0]) == SEGMENT.kind
    assert reader.rejected == 1


def test_polls_in_quick_succession_do_not_reject(writer: RingWriter, open_reader: Open) -> None:
    clock = itertools.count(0, 1_000_000)
    reader = open_reader(writer.path, mono=lambda: next(clock))
    everything(reader)
    at = reader.position[1]
    while writer.segment == 0:
        writer.append(finished(7))
    overwrite(writer.path, HEADER_BYTES + at + 20, b"\xff")
    assert [reader.poll() for _ in range(40)] == [None] * 40
    assert reader.rejected == 0


def test_a_record_that_is_not_whole_yet_is_waited_for(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    everything(reader)
    at = HEADER_BYTES + reader.position[1]
    writer.append(finished(1))
    whole = writer.path.read_bytes()[at : at + 80]
    overwrite(writer.path, at, whole[:40] + bytes(40))
    assert reader.poll() is None
    overwrite(writer.path, at, whole)
    assert [bodies(raw) for raw in everything(reader)] == [[finished(1)]]


@pytest.mark.parametrize("hint", [(0, 0), (2**64 - 1, 2**64 - 1), (1 << 40, 5), (7, 1 << 63)])
def test_hints_are_never_proof(
    writer: RingWriter, open_reader: Open, hint: tuple[int, int]
) -> None:
    sent = [finished(i) for i in range(500)]
    for each in sent:
        writer.append(each)
    overwrite(writer.path, HINT_BYTE, HINT.pack(*hint))
    raws = everything(open_reader(writer.path))
    read = [b for raw in raws for b in bodies(raw)]
    assert [b for b in read if kind(b) == FINISHED.kind] == sent


def test_a_dead_ring_is_drained_once_read(
    writer: RingWriter, open_reader: Open, tmp_path: Path
) -> None:
    writer.append(finished(1))
    copy = tmp_path / "dead.ring"
    shutil.copy(writer.path, copy)
    living, dead = open_reader(writer.path), open_reader(copy)
    assert (living.alive(), dead.alive()) == (True, False)
    assert not dead.drained()
    everything(dead)
    everything(living)
    assert (living.drained(), dead.drained()) == (False, True)


def test_damage_at_the_end_of_a_dead_ring_is_lost_and_counted(
    writer: RingWriter, open_reader: Open, tmp_path: Path
) -> None:
    for i in range(9):
        writer.append(finished(i))
    copy = tmp_path / "dead.ring"
    shutil.copy(writer.path, copy)
    clock = itertools.count(0, 50_000_000)
    reader = open_reader(copy, mono=lambda: next(clock))
    first = 80 * 4
    overwrite(copy, HEADER_BYTES + first, bytes(64))
    raws = [raw for raw in (reader.poll() for _ in range(6)) if raw is not None]
    read, lost = raws
    assert len(read.offsets) + loss(lost)[1] == 10
    assert loss(lost)[3] == 1
    assert reader.drained()


def test_hello_says_what_the_adapter_knew_and_what_the_ring_is(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    hello = reader.hello
    assert hello["kind"] == "mini"
    assert hello["ring_uuid"] == writer.ring_uuid == reader.ring_uuid == writer.path.stem
    assert f"{reader.ring_id:016x}" == writer.ring_uuid[:16]
    assert (hello["mono_ns"], hello["unix_ns"]) == reader.clock_pair
    assert hello["pid"] == os.getpid()


def test_another_schema_version_is_refused_in_one_sentence(
    writer: RingWriter, open_reader: Open
) -> None:
    overwrite(writer.path, 8, (99).to_bytes(4, "little"))
    with pytest.raises(RingVersionError, match=r"schema version 99, this batchscope reads version"):
        open_reader(writer.path)


@pytest.mark.parametrize(
    ("at", "data"), [(0, b"NOTARING"), (16, b"\xff" * 8), (36, b"\1"), (300, b"\0\0\0")]
)
def test_a_damaged_header_is_refused(
    writer: RingWriter, open_reader: Open, at: int, data: bytes
) -> None:
    overwrite(writer.path, at, data)
    with pytest.raises(RingFormatError):
        open_reader(writer.path)


def test_a_short_file_is_refused(writer: RingWriter, open_reader: Open, tmp_path: Path) -> None:
    short = tmp_path / "short.ring"
    short.write_bytes(writer.path.read_bytes()[:-4096])
    with pytest.raises(RingFormatError):
        open_reader(short)
    short.write_bytes(b"")
    with pytest.raises(RingFormatError):
        open_reader(short)


def test_a_config_too_large_for_the_header_is_left_out_and_said(
    tmp_path: Path, open_reader: Open
) -> None:
    ring = RingWriter(tmp_path, {"kind": "mini", "config": {"x": "y" * 70_000}}, size=1)
    while not ring.grow():
        pass
    hello = open_reader(ring.path).hello
    ring.close()
    assert (hello["config"], hello["config_omitted"], hello["kind"]) == ({}, True, "mini")
    assert len(json.dumps(hello)) < 1000
