"""An engine's side as a process of its own, to be watched, killed and starved.

    python writing.py FOLDER MODE [SIZE]

Prints the ring's path, then does what MODE says; one line per fact, flushed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from zlib import crc32

from batchscope.schemas.records import FINISHED
from batchscope.schemas.ring import RingUnavailable, RingWriter


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    size = int(sys.argv[3]) if len(sys.argv) > 3 else 256 << 10
    ring = RingWriter(folder, {"kind": "mini"}, size=size)
    try:
        while not ring.grow():
            pass
    except RingUnavailable as why:
        say(why)
        return
    say(ring.path)
    {"stream": stream, "once": once, "fork": fork, "fill": fill}[mode](ring)


def say(what: object) -> None:
    print(what, flush=True)


def wait() -> None:
    sys.stdin.read()  # until the parent closes the pipe or kills us


def record(i: int) -> bytes:
    """A body that proves itself: number, filler that follows from it, checksum of both."""
    text = FINISHED.struct.pack(FINISHED.kind, 0, i, 0, 0, 0, 0, 0, 0) + bytes([i & 255]) * (
        i % 900
    )
    return text + crc32(text).to_bytes(4, "little")


def stream(ring: RingWriter) -> None:
    """Write as fast as it goes for a second and a half."""
    end = time.monotonic() + 1.5
    i = 0
    while time.monotonic() < end:
        ring.append(record(i))
        i += 1
    say(i)
    wait()


def once(ring: RingWriter) -> None:
    """A thousand records, then silence."""
    for i in range(1000):
        ring.append(record(i))
    say("written")
    wait()


def fork(ring: RingWriter) -> None:
    """A worker forked after the ring was opened tries to write, and outlives us."""
    ring.append(record(0))
    if os.fork() == 0:
        say(("ready", ring.ready))
        try:
            ring.append(record(1))
        except RingUnavailable as why:
            say(("refused", str(why)))
        wait()
        os._exit(0)
    ring.append(record(2))
    wait()


def fill(ring: RingWriter) -> None:
    """Fill the file system to the last byte, then write four laps."""
    flags = os.O_CREAT | os.O_WRONLY
    hog = os.open(ring.path.parent / "hog", flags)
    try:
        while os.write(hog, bytes(4096)):
            pass
    except OSError as why:
        say(why.strerror)
    while ring.segment < 64:
        ring.append(record(ring.segment))
    say(ring.segment)


if __name__ == "__main__":
    main()
