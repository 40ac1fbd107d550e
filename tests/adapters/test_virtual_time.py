"""An engine in virtual time: its records, and so every folded duration, are in that time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.virtual import Simulation
from batchscope.exporter.fold import RingFold
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.ring import RingReader, list_rings

SECOND = 1_000_000_000
EPOCH = 1_700_000_000 * SECOND


class Row(NamedTuple):
    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    abort_after_ns: int | None = None


def test_folded_times_are_the_virtual_ones_to_the_nanosecond(tmp_path: Path) -> None:
    simulation = Simulation(EngineConfig(runner="cost", max_num_batched_tokens=64), start_ns=SECOND)
    clock = simulation.clock
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(tmp_path), "BATCHSCOPE_RING_BYTES": "1048576"}
    handle = mini.attach(simulation.engine, env, clock=clock, wall=lambda: EPOCH + clock())
    reader = RingReader(list_rings(tmp_path)[0])
    simulation.run([Row(i, i * 2 * SECOND, 100 + i, 20) for i in range(50)])
    handle.detach()
    fold, found = RingFold(reader.hello, reader.ring_id, slo=None), []
    while (raw := reader.poll()) is not None:
        seq, at = reader.position
        chunk = chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=at)
        found.append(fold.fold(chunk))
    intervals = np.concatenate([rows["iterations"]["interval_ns"] for rows in found])
    took = [step.ended_ns - step.began_ns for step in simulation.steps]
    assert intervals[1:].tolist() == took[1:]  # a ring's first completion has none before it
    ttft = np.concatenate([rows["requests"]["ttft_ns"] for rows in found])
    assert ttft.tolist() == [served.ttft_ns for served in simulation.served]
    ends = np.concatenate([rows["iterations"]["unix_ns"] for rows in found])
    assert ends.tolist() == [EPOCH + step.ended_ns for step in simulation.steps]
