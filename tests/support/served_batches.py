"""One load for an engine that decides by itself: what it answered, and its batches."""

from __future__ import annotations

import random

from batchscope.engine.batch import Batch
from batchscope.engine.engine import Engine


def serve(engine: Engine, count: int) -> tuple[list[list[int]], list[Batch]]:
    """Tokens of requests of 1 to 100, half of them behind a common prefix, and the batches."""
    draw, batches, schedule = random.Random(7), [], engine.scheduler.schedule

    def kept() -> Batch:
        batches.append(schedule())
        return batches[-1]

    engine.scheduler.schedule = kept  # type: ignore[method-assign]
    shared = [draw.randrange(512) for _ in range(40)]
    seqs = []
    for number in range(count):
        own = [draw.randrange(512) for _ in range(draw.randrange(1, 60))]
        prompt = shared * (number % 2) + own
        seqs.append(engine.submit(str(number), prompt, draw.randrange(1, 30)))
    for _ in range(2000):
        if not engine.has_work():
            return [seq.output for seq in seqs], batches
        engine.step()
    raise AssertionError("the engine never came to rest")
