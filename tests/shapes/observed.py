"""A simulation with the adapter on, and what the exporter folds from its ring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.virtual import Simulation
from batchscope.exporter.fold import RingFold
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.ring import RingReader, list_rings
from batchscope.schemas.slo import Slo
from batchscope.workload.trace import Trace

POLL_STEPS = 500


class Observed:
    """The run and its tables: table -> column -> all final rows, in order."""

    def __init__(
        self, config: EngineConfig, trace: Trace, folder: Path, *, slo: Slo | None = None
    ) -> None:
        self.run = Simulation(config)
        clock = self.run.clock
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_RING_BYTES": "4194304"}
        before = set(list_rings(folder))
        handle = mini.attach(self.run.engine, env, clock=clock, wall=clock)
        (path,) = set(list_rings(folder)) - before
        self._reader = RingReader(path)
        self.fold = RingFold(self._reader.hello, self._reader.ring_id, slo=slo)
        self._parts: dict[str, list[Any]] = {}
        self.run.run(trace, after_step=self._read_at_times)
        handle.detach()
        self._read()
        assert self.counted("lost_iterations") == 0
        assert self.counted("audit_violations") == 0 < self.counted("audit_checks")

    def column(self, table: str, name: str) -> npt.NDArray[Any]:
        """One column of all final rows."""
        return np.concatenate([part[name] for part in self._parts[table]])

    def counted(self, name: str) -> int:
        """A counter, its labels summed."""
        return sum(n for (own, _), n in self.fold.totals.counters.items() if own == name)

    def _read_at_times(self, step: int) -> None:
        if step % POLL_STEPS == 0:
            self._read()

    def _read(self) -> None:
        reader = self._reader
        while (raw := reader.poll()) is not None:
            seq, at = reader.position
            chunk = chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=at)
            for table, columns in self.fold.fold(chunk).items():
                self._parts.setdefault(table, []).append(columns)
