"""A process that writes a ring at a given rate: 256 members, a share of them changed now and then.

    python -m bench.synthetic FOLDER NAME ITERATIONS_PER_S SECONDS CHURN EVERY

CHURN requests leave and as many join every EVERY iterations (0: never). Prints the ring's path,
begins at the first line on stdin, prints a JSON line at the end, says BYE at the second line.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections import deque
from pathlib import Path
from struct import Struct

from batchscope.schemas import records as r
from batchscope.schemas.reasons import FinishReason
from batchscope.schemas.ring import RingWriter

MEMBERS = 256
PROMPT = 64
_SCHEDULED = r.SCHEDULED.struct.pack
_COMPLETED = r.COMPLETED.struct.pack
_NULL = r.NULL["I"]
_STOP = FinishReason.STOP.code
_PREFILL = Struct("<III").pack


class Stream:
    """The bookkeeping of one engine: serials of its members, oldest first."""

    def __init__(self, writer: RingWriter, *, forward_ns: int) -> None:
        self.writer, self.serial, self.forward_ns = writer, 0, forward_ns
        self.members: deque[int] = deque()
        self.born: dict[int, int] = {}
        self.segment = -1
        self.fresh: list[int] = []

    def join(self, count: int, now: int) -> None:
        """Requests arrive and are prefilled in the next iteration."""
        for _ in range(count):
            self.serial += 1
            self.born[self.serial] = self.writer.iteration_id
            self.writer.append(_request(r.ARRIVED, self.serial, now))
            self.fresh.append(self.serial)

    def leave(self, count: int, now: int) -> None:
        """The oldest finish."""
        for _ in range(count):
            serial = self.members.popleft()
            tokens = self.writer.iteration_id - self.born.pop(serial)
            fields = (now, r.NULL64, r.NULL64, r.NULL64, serial, tokens, _STOP)
            self.writer.append(r.FINISHED.struct.pack(r.FINISHED.kind, 0, *fields))

    def step(self, now: int, *, changed: bool) -> int:
        """One iteration; its members."""
        writer, fresh = self.writer, self.fresh
        full = changed or writer.reserve(4 * MEMBERS + 1024) or writer.segment != self.segment
        if writer.segment != self.segment:
            self._announce(now)
        iteration, n = writer.iteration_id, len(self.members)
        flags = 0 if full else r.SAME_DECODES
        counts = (n, len(fresh), 0, 0, 0)
        tokens = (8192, PROMPT * len(fresh), n, 0)
        fixed = (iteration, now, 20_000, 9_000, *tokens, n + len(fresh), 0, 0, 65_536, 4 * n, 0)
        tail = array("I", self.members).tobytes() if full else b""
        prefill = b"".join(_PREFILL(serial, 0, PROMPT) for serial in fresh)
        writer.append(_SCHEDULED(r.SCHEDULED.kind, flags, *fixed, *counts) + tail + prefill)
        writer.iteration_id += 1
        done = (iteration, now + self.forward_ns, r.NULL64, _NULL, 0, 0)
        writer.append(_COMPLETED(r.COMPLETED.kind, 0, *done))
        self.members.extend(fresh)
        self.fresh = []
        return n + len(fresh)

    def _announce(self, now: int) -> None:
        """A segment stands alone: whoever lives is announced in it."""
        self.segment = self.writer.segment
        for serial in self.members:
            computed = PROMPT + self.writer.iteration_id - self.born[serial] - 1
            emitted = self.writer.iteration_id - self.born[serial]
            self.writer.append(_request(r.LIVE, serial, now, computed, emitted, 0, 0, 2))


def _request(record: r.Record, serial: int, now: int, *more: int) -> bytes:
    null32, null64 = r.NULL["I"], r.NULL["q"]
    key = serial * 0x9E3779B97F4A7C15 % 2**64
    fields = (now, null64, key, r.NULL["Q"], 0, 0, 0, serial, PROMPT, null32, r.NULL["i"])
    return record.struct.pack(record.kind, 0, *fields, 0, 0, 0, 0, 0, 0, *more)


def write(
    writer: RingWriter, rate: float, seconds: float, churn: int, every: int
) -> dict[str, float]:
    """Write at a rate; how much came out, and by how much the clock was missed at worst."""
    stream = Stream(writer, forward_ns=round(5e8 / rate))
    steps, late = 0, 0.0
    stream.join(MEMBERS, time.monotonic_ns())
    began = time.monotonic()
    total = int(rate * seconds)
    for i in range(total):
        due = began + i / rate
        wait = due - time.monotonic()
        if wait > 0.0005:
            time.sleep(wait)
        late = max(late, -wait)
        now = time.monotonic_ns()
        changed = i < 2 or (bool(every) and i % every == 0)
        if changed and i > 1:
            stream.leave(churn, now)
            stream.join(churn, now)
        steps += stream.step(now, changed=changed or i == 1 or (bool(every) and i % every == 1))
    return {
        "iterations": total,
        "member_steps": steps,
        "late_s": late,
        "s": time.monotonic() - began,
    }


def main(folder: str, name: str, rate: str, seconds: str, churn: str, every: str) -> None:
    """Wait for the starting line, write, report."""
    said = {"engine": name, "kind": "mini", "model_name": "synthetic", "role": "both", "dp_rank": 0}
    writer = RingWriter(Path(folder), said | {"block_tokens": 16, "provides": {}})
    while not writer.grow():
        pass
    print(writer.path, flush=True)
    sys.stdin.readline()
    print(
        json.dumps(write(writer, float(rate), float(seconds), int(churn), int(every))), flush=True
    )
    sys.stdin.readline()
    writer.append(r.BYE.struct.pack(r.BYE.kind, 0, time.monotonic_ns()))
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
