"""Bytes of the ring file: header, framing of a record, and the errors about them.

    header 64 KiB | segment 0 | ... | segment 15

A record is u32 length (without alignment), u32 crc, u64 seq, body, padded to 8. The CRC is seeded
with the ring's uuid and covers seq and body: no record of the last lap or another ring validates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from struct import Struct
from typing import Any
from zlib import crc32

from batchscope.schemas.records import SCHEMA_VERSION

MAGIC = b"BSCPRING"
HEADER_BYTES = 64 << 10
SEGMENTS = 16
FRAME_BYTES = 16
PAD_BYTES = 24
"""A framed PAD; this much stays free at the end of every segment."""
FIRST_SEQ = 1
FIRST_ITERATION = 1
HINT_BYTE = 128
"""Where two words lie, on a cache line of their own: next byte position (all laps), next seq."""
POSITION_WORD, SEQ_WORD = HINT_BYTE // 8, HINT_BYTE // 8 + 1
"""The same, counted in words of 8 bytes."""
HINT = Struct("<QQ")
FRAME = Struct("<IIQ")
SEQ = Struct("<Q")
WORD = Struct("<II")

_FIXED = Struct("<8sII16sQIIqqI")
_CRC = Struct("<I")  # over the fixed part and HELLO
_HELLO_BYTE = 256


class RingError(Exception):
    """Something about a ring that the operator should read: one sentence."""


class RingUnavailable(RingError):  # noqa: N818 - a state, not a mistake
    """There can be no ring here; the engine goes on without."""


class RingFormatError(RingError):
    """Not a ring, or a damaged one."""


class RingVersionError(RingError):
    """A ring of another schema version."""


class RingLocked(RingError):  # noqa: N818
    """Another exporter already reads this folder."""


@dataclass(frozen=True)
class Header:
    """What never changes in a ring. Sizes in bytes, the clock pair in ns."""

    ring_uuid: bytes
    segment_bytes: int
    segments: int
    mono_ns: int
    unix_ns: int
    hello: dict[str, Any]

    @property
    def seed(self) -> int:
        """Where the CRC of every record of this ring starts."""
        return crc32(self.ring_uuid)

    @property
    def ring_bytes(self) -> int:
        """All segments together: after this many bytes the writer is back where it was."""
        return self.segment_bytes * self.segments


def framed(body_bytes: int) -> int:
    """Bytes that a body of this size takes in a segment: what `RingWriter.reserve` wants summed."""
    return (FRAME_BYTES + body_bytes + 7) & -8


def frame(body: bytes, *, seq: int, seed: int) -> bytes:
    """One record as it lies in a segment."""
    payload = SEQ.pack(seq) + body
    length = FRAME_BYTES + len(body)
    return WORD.pack(length, crc32(payload, seed)) + payload + bytes(-length & 7)


def pack_header(header: Header) -> bytes:
    """The header up to the end of HELLO, its hint words 0.

    A config too large for the page is left out, and HELLO says so; RingUnavailable when the rest
    is too large, too.
    """
    room = HEADER_BYTES - _HELLO_BYTE
    text = _canonical(header.hello)
    if len(text) > room:
        text = _canonical({**header.hello, "config": {}, "config_omitted": True})
    if len(text) > room:
        raise RingUnavailable(f"HELLO takes {len(text)} bytes, the header holds {room}")
    fixed = _FIXED.pack(
        MAGIC,
        SCHEMA_VERSION,
        HEADER_BYTES,
        header.ring_uuid,
        header.segment_bytes,
        header.segments,
        0,
        header.mono_ns,
        header.unix_ns,
        len(text),
    )
    checked = fixed + _CRC.pack(crc32(text, crc32(fixed)))
    return checked.ljust(_HELLO_BYTE, b"\0") + text


def parse_header(page: bytes, *, name: str) -> Header:
    """Header from a ring file's first 64 KiB; RingFormatError or RingVersionError about `name`."""
    if len(page) < HEADER_BYTES or page[: len(MAGIC)] != MAGIC:
        raise RingFormatError(f"{name} is not a batchscope ring")
    _, version, size, uuid, segment, segments, _, mono, unix, n = _FIXED.unpack_from(page)
    if version != SCHEMA_VERSION:
        raise RingVersionError(
            f"{name} has schema version {version}, this batchscope reads version {SCHEMA_VERSION}: "
            "use the same version in the engine's environment and here"
        )
    text = page[_HELLO_BYTE : _HELLO_BYTE + n]
    (crc,) = _CRC.unpack_from(page, _FIXED.size)
    sane = size == HEADER_BYTES and 0 < segments <= 4096 and 4096 <= segment <= 1 << 30
    if not sane or segment % 8 or crc32(text, crc32(page[: _FIXED.size])) != crc:
        raise RingFormatError(f"{name} has a damaged header")
    return Header(uuid, segment, segments, mono, unix, json.loads(text))


def _canonical(hello: dict[str, Any]) -> bytes:
    return json.dumps(hello, sort_keys=True, separators=(",", ":"), default=str).encode()
