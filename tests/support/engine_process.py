"""A process that writes a ring like a small engine would, for tests in which processes die.

    python -m tests.support.engine_process FOLDER ITERATIONS PAUSE_S SEED [stay]

Prints the ring's path when it is there. With `stay` it leaves a batch in flight and waits to be
killed; else it says BYE and ends.
"""

import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.records import body

from batchscope.schemas import records as r
from batchscope.schemas.reasons import FinishReason, PreemptMode, codes
from batchscope.schemas.ring import RingWriter

BUDGET, SLOTS = 512, 24


class Load:
    """A scheduler's bookkeeping, no more: who runs, who waits, what was emitted."""

    def __init__(self, writer: Any, seed: Any) -> None:
        self.writer, self.random = writer, random.Random(seed)
        self.serial = 0
        self.waiting: list[Any] = []
        self.running: dict[int, Any] = {}

    def step(self) -> None:
        """One iteration with its arrivals, a preemption now and then, and its ends."""
        for _ in range(self.random.choice((0, 0, 1, 2))):
            self.arrive()
        if len(self.running) > 4 and self.random.random() < 0.02:
            self.preempt()
        prefill = self.admit()
        decode = [s for s in self.running if s not in {p[0] for p in prefill}]
        iteration = self.schedule(prefill, decode)
        self.complete(iteration, prefill, decode)

    def put(self, record: Any, **fields: Any) -> None:
        self.writer.append(body(record, **fields))

    def arrive(self) -> None:
        self.serial += 1
        prompt = self.random.randint(1, 900)
        self.put(
            r.ARRIVED, at_ns=now(), serial=self.serial, prompt_tokens=prompt, key=self.serial * 7
        )
        self.waiting.append((self.serial, prompt, 0, self.random.randint(1, 40), 0))

    def preempt(self) -> None:
        serial, (prompt, out, left) = self.running.popitem()
        fields = {"lost_tokens": prompt + out, "mode": codes(PreemptMode)[PreemptMode.RECOMPUTE]}
        self.put(r.PREEMPTED, at_ns=now(), serial=serial, **fields)
        self.waiting.insert(0, (serial, prompt + out, 0, left, out))

    def admit(self) -> Any:
        budget, prefill = BUDGET - len(self.running), []
        while self.waiting and budget > 0 and len(self.running) < SLOTS:
            serial, target, done, left, out = self.waiting.pop(0)
            if out and not done:
                self.put(r.RESUMED, at_ns=now(), serial=serial, target_tokens=target)
            tokens = min(budget, target - done)
            budget -= tokens
            prefill.append((serial, done, tokens))
            if done + tokens < target:
                self.waiting.insert(0, (serial, target, done + tokens, left, out))
                break
            self.running[serial] = [target - out, out, left]
        return prefill

    def schedule(self, prefill: Any, decode: Any) -> Any:
        iteration = self.writer.iteration_id
        fields = {
            "iteration_id": iteration,
            "at_ns": now(),
            "schedule_ns": 20_000,
            "budget_tokens": BUDGET,
            "prefill_tokens": sum(p[2] for p in prefill),
            "decode_tokens": len(decode),
            "running": len(self.running),
            "waiting": len(self.waiting),
        }
        tails = {"prefill": prefill, "decode": [(s,) for s in decode]}
        self.put(r.SCHEDULED, tails=tails, **fields)
        self.writer.iteration_id += 1
        return iteration

    def complete(self, iteration: Any, prefill: Any, decode: Any) -> None:
        silent = [(s, 0) for s, _, _ in prefill if s not in self.running]
        self.put(r.COMPLETED, iteration_id=iteration, at_ns=now(), tails={"emitted": silent})
        for serial in [*decode, *(s for s, _, _ in prefill if s in self.running)]:
            self.running[serial][1] += 1
            self.running[serial][2] -= 1
            if self.running[serial][2] <= 0:
                self.finish(serial)

    def finish(self, serial: Any) -> None:
        _, out, _ = self.running.pop(serial)
        reason = codes(FinishReason)[FinishReason.STOP]
        self.put(r.FINISHED, at_ns=now(), serial=serial, output_tokens=out, reason=reason)


def now() -> Any:
    return time.monotonic_ns()


def hello(seed: Any) -> Any:
    """What the engine says of itself."""
    return {
        "engine": f"synthetic-{seed}",
        "kind": "mini",
        "version": "1",
        "model_name": "none",
        "role": "both",
        "dp_rank": 0,
        "block_tokens": 16,
        "config": {"slots": SLOTS, "budget": BUDGET},
        "config_hash": "synthetic",
        "adapter_version": "0",
        "provides": {},
    }


def main(folder: Any, iterations: Any, pause_s: Any, seed: Any, stay: Any = "") -> None:
    """Write the ring."""
    writer = RingWriter(Path(folder), hello(seed))
    while not writer.grow():
        pass
    print(writer.path, flush=True)
    load = Load(writer, int(seed))
    for _ in range(int(iterations)):
        load.step()
        time.sleep(float(pause_s))
    if stay:
        load.schedule([], list(load.running))  # in flight when it dies
        print("written", flush=True)
        sys.stdin.read()
        return
    writer.append(body(r.BYE, at_ns=now()))
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
