"""100,000 damaged rings: no crash, no hang, no invented row, every missing record accounted for."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from tests.support.records import body

from batchscope.schemas.records import FINISHED, LOSS, SCHEDULED
from batchscope.schemas.ring import RingError, RingReader, RingWriter
from batchscope.schemas.ring.layout import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    HINT,
    HINT_BYTE,
    frame,
)
from batchscope.schemas.ring.reader import validate

SEGMENT_BYTES = 4096
RING_BYTES = 16 * SEGMENT_BYTES
STREAM_CASES = 88_000
FILE_CASES = 12_000

Mutation = Callable[[random.Random, bytearray, "Image"], None]


@dataclass(frozen=True)
class Image:
    """A dead ring of a little more than two laps, and what lay there one lap before.

    `frames`: seq -> the framed record; `at`: seq -> its byte position over all laps.
    """

    path: Path
    now: bytes
    before: bytes
    seed: int
    stranger: int
    frames: dict[int, bytes]
    at: dict[int, int]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    ring = RingWriter(folder, {"kind": "mini"}, size=RING_BYTES)
    while not ring.grow():
        pass
    rng = random.Random(7)
    reader = RingReader(ring.path)
    frames: dict[int, bytes] = {}
    at: dict[int, int] = {}
    before = b""
    while ring.segment < 34:
        before = ring.path.read_bytes() if ring.segment == 18 and not before else before
        _append(ring, rng)
        _remember(reader, frames, at)
    path = folder / "dead.ring"
    shutil.copy(ring.path, path)
    ring.close()
    reader.close()
    oldest = min(seq for seq, pos in at.items() if pos >= (ring.segment - 15) * SEGMENT_BYTES)
    kept = {seq: each for seq, each in frames.items() if seq >= oldest}
    seed = crc32(bytes.fromhex(ring.ring_uuid))
    return Image(path, path.read_bytes(), before, seed, 12345, kept, {seq: at[seq] for seq in kept})


def _append(ring: RingWriter, rng: random.Random) -> None:
    if rng.random() < 0.5:
        ring.append(body(FINISHED, serial=rng.randrange(1 << 32)))
        return
    members = [(rng.randrange(1 << 32),) for _ in range(rng.choice([0, 3, 40, 150]))]
    fields = {"iteration_id": ring.iteration_id, "n_decode": len(members)}
    ring.append(body(SCHEDULED, tails={"decode": members}, **fields))
    ring.iteration_id += 1


def _remember(reader: RingReader, frames: dict[int, bytes], at: dict[int, int]) -> None:
    start = reader.position[1]
    while (raw := reader.poll(max_bytes=1)) is not None:
        for seq, offset in zip(raw.seqs, raw.offsets, strict=True):
            length = FRAME.unpack_from(raw.data, offset)[0]
            frames[seq] = raw.data[offset : offset + (length + 7 & -8)]
            at[seq] = start + offset
        start = reader.position[1]


def _place(image: Image, seq: int) -> int:
    """Where a record lies in the file."""
    return HEADER_BYTES + image.at[seq] % RING_BYTES


def _any(rng: random.Random, image: Image) -> int:
    return rng.choice(list(image.frames))


def flip(rng: random.Random, ring: bytearray, image: Image) -> None:
    """Random bits anywhere in the segments."""
    for _ in range(rng.choice([1, 1, 2, 8])):
        ring[rng.randrange(HEADER_BYTES, len(ring))] ^= 1 << rng.randrange(8)


def tear(rng: random.Random, ring: bytearray, image: Image) -> None:
    """The rest of a record is what lay there a lap before."""
    seq = _any(rng, image)
    start, size = _place(image, seq), len(image.frames[seq])
    cut = start + rng.randrange(size)
    ring[cut : start + size] = image.before[cut : start + size]


def erase(rng: random.Random, ring: bytearray, image: Image) -> None:
    """Zeros from somewhere on."""
    at = rng.randrange(HEADER_BYTES, len(ring))
    size = min(rng.choice([1, 8, 64, 5000]), len(ring) - at)
    ring[at : at + size] = bytes(size)


def last_lap(rng: random.Random, ring: bytearray, image: Image) -> None:
    """Whole segments, valid in their time, of the lap before."""
    at = HEADER_BYTES + rng.randrange(16) * SEGMENT_BYTES
    ring[at : at + SEGMENT_BYTES] = image.before[at : at + SEGMENT_BYTES]


def stranger(rng: random.Random, ring: bytearray, image: Image) -> None:
    """A record of another ring with the very seq that is expected there."""
    seq = _any(rng, image)
    size = len(image.frames[seq])
    record = frame(body(FINISHED, serial=666), seq=seq, seed=image.stranger)
    ring[_place(image, seq) : _place(image, seq) + min(size, len(record))] = record[:size]


def displaced(rng: random.Random, ring: bytearray, image: Image) -> None:
    """A valid record of this ring where another belongs."""
    seq, other = _any(rng, image), _any(rng, image)
    at, record = _place(image, seq), image.frames[other]
    ring[at : at + len(record)] = record[: len(ring) - at]


def lie(rng: random.Random, ring: bytearray, image: Image) -> None:
    """The hints say anything, a record says any length."""
    ring[HINT_BYTE : HINT_BYTE + HINT.size] = rng.randbytes(HINT.size)
    at = _place(image, _any(rng, image))
    ring[at : at + 4] = rng.choice([rng.randbytes(4), bytes(4), b"\xff" * 4])


MUTATIONS: tuple[Mutation, ...] = (flip, tear, erase, last_lap, stranger, displaced, lie)


def _read(path: Path, position: tuple[int, int]) -> tuple[list[tuple[int, bytes]], list[range]]:
    """Everything a reader says from `position` until it is drained, and the seqs it calls lost."""
    clock = itertools.count(0, 50_000_000)
    reader = RingReader(path, position=position, mono=lambda: next(clock))
    seen: list[tuple[int, bytes]] = []
    lost: list[range] = []
    try:
        for _ in range(200):
            if (raw := reader.poll()) is None:
                if reader.drained():
                    return seen, lost
                continue
            if raw.is_loss:
                _, _, first, records, _, _ = LOSS.struct.unpack_from(raw.data, FRAME_BYTES)
                lost.append(range(first, first + records))
                continue
            for seq, at in zip(raw.seqs, raw.offsets, strict=True):
                length = FRAME.unpack_from(raw.data, at)[0]
                seen.append((seq, raw.data[at : at + length]))
    finally:
        reader.close()
    raise AssertionError("never drained")


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_yield_written_records_and_exact_losses(image: Image, seed: int) -> None:
    rng = random.Random(seed)
    rejected = lossless = 0
    with image.path.open("r+b", buffering=0) as file:
        for _ in range(FILE_CASES // 4):
            ring = bytearray(image.now)
            for mutate in rng.choices(MUTATIONS, k=rng.choice([1, 1, 2, 4])):
                mutate(rng, ring, image)
            file.seek(0)
            file.write(ring)
            first = _any(rng, image)
            seen, lost = _read(image.path, (first, image.at[first]))
            _is_true(image, ring, first, seen, lost)
            rejected += bool(lost)
            lossless += not lost
    assert rejected > 100
    assert lossless > 100


def _is_true(
    image: Image,
    ring: bytearray,
    first: int,
    seen: list[tuple[int, bytes]],
    lost: list[range],
) -> None:
    for seq, record in seen:
        written = image.frames[seq]  # under this seq and no other
        assert record == written[: FRAME.unpack_from(written)[0]]
    told = sorted([seq for seq, _ in seen] + [seq for each in lost for seq in each])
    assert told == list(range(first, first + len(told)))  # each once, none left out
    readable = 0
    for seq in itertools.takewhile(image.frames.__contains__, itertools.count(first)):
        at, record = _place(image, seq), image.frames[seq]
        if ring[at : at + len(record)] != record:
            break
        readable += 1
    assert [seq for seq, _ in seen][:readable] == list(range(first, first + readable))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_streams_end_at_the_damage(image: Image, seed: int) -> None:
    rng = random.Random(100 + seed)
    seqs = list(image.frames)
    short = 0
    for _ in range(STREAM_CASES // 4):
        start = rng.randrange(len(seqs) - 12)
        some = seqs[start : start + rng.randrange(1, 12)]
        whole = b"".join(image.frames[seq] for seq in some)
        data = _damage(rng, bytearray(whole), image)
        left = SEGMENT_BYTES * 4
        offsets, _ = validate(data, seq=some[0], seed=image.seed, left=left, segment=left)
        for seq, at in zip(some, offsets, strict=False):
            length = FRAME.unpack_from(data, at)[0]
            assert data[at : at + length] == image.frames[seq][:length]
        assert len(offsets) <= len(some)
        short += len(offsets) < len(some)
    assert short > STREAM_CASES // 8


def _damage(rng: random.Random, data: bytearray, image: Image) -> bytes:
    how = rng.randrange(5)
    at = rng.randrange(len(data))
    if how == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[at:]
    elif how == 2:
        data[at : at + 4] = rng.randbytes(4)
    elif how == 3:
        record = image.frames[_any(rng, image)]
        data[at & -8 : (at & -8) + len(record)] = record
    else:
        record = frame(body(FINISHED), seq=rng.choice(list(image.frames)), seed=image.stranger)
        data[at & -8 : (at & -8) + len(record)] = record
    return bytes(data)


def test_damaged_headers_are_refused_or_harmless(image: Image) -> None:
    rng = random.Random(3)
    refused = 0
    with image.path.open("r+b", buffering=0) as file:
        for _ in range(2000):
            page = bytearray(image.now[:512])
            page[rng.randrange(512)] = rng.randrange(256)
            file.seek(0)
            file.write(page)
            try:
                RingReader(image.path).close()
            except RingError:
                refused += 1
    assert refused > 500
