"""What observing costs a whole engine: on and off in one run, by ABBA blocks, beside an A/A run.

The detail level is flipped by the control word every 200 iterations of the bundled engine in steady
decode (bench/abba.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.engine import Engine
from batchscope.schemas.ring import LEVEL_MEMBERS, set_level
from bench.abba import BLOCK_STEPS, compared, table, timed

__all__ = ["run", "table"]

MEMBERS = 64
PROMPT_TOKENS = 32


class Subject:
    """A bundled engine in steady decode, observed; requests are renewed before they grow long."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = EngineConfig(
            runner="torch",
            max_num_seqs=MEMBERS,
            num_blocks=MEMBERS * 40,
            max_num_batched_tokens=4096,
            max_model_len=640,
        )
        self.engine = Engine(config)
        env = os.environ | {
            "BATCHSCOPE": "1",
            "BATCHSCOPE_DIR": str(folder),
            "BATCHSCOPE_OVERHEAD": "0",
        }
        self.handle = mini.attach(self.engine, env)
        self._made = 0

    def refill(self) -> None:
        """As many running requests as there are slots, all at the same short context."""
        for seq in list(self.engine.scheduler.live.values()):
            self.engine.abort(seq.request_id)
        for _ in range(MEMBERS):
            self._made += 1
            prompt = [(self._made * 7 + i) % 500 for i in range(PROMPT_TOKENS)]
            self.engine.submit(f"r{self._made}", prompt, 600)
        self.engine.step()
        self.engine.step()

    def block(self, level: int) -> tuple[float, float]:
        """(median interval, median CPU time) of a block's settled steps, ns."""
        self.refill()
        assert self.handle.ring_uuid is not None
        set_level(self.folder, self.handle.ring_uuid, level)
        return timed(self.engine.step)


def run(*, quads: int = 36) -> dict[str, Any]:
    """{members, block_steps, quads} and what `compared` gives."""
    import torch

    torch.set_num_threads(1)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="batchscope-impact-", dir=base))
    try:
        subject = Subject(folder)
        subject.block(LEVEL_MEMBERS)
        figures = compared(subject.block, quads=quads)
        subject.handle.detach()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"members": MEMBERS, "block_steps": BLOCK_STEPS, "quads": quads, **figures}


if __name__ == "__main__":
    print(table(run()))
