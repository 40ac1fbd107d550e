"""The fold of one ring: records in, final rows out, and a state that goes on anywhere.

fold(a + b) gives the rows and the state of fold(a), then fold(b), wherever the cut. It is a
sequential state machine over records, computed piece by piece with numpy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchscope.exporter.clock import hello_offset
from batchscope.exporter.fold import deliveries, frontend, iterations, requests, run_rows, sequence
from batchscope.exporter.fold.layout import NULL
from batchscope.exporter.fold.pieces import Cutter
from batchscope.exporter.fold.state import State
from batchscope.exporter.rows import Rows, joined
from batchscope.exporter.tail import Chunk
from batchscope.exporter.totals import Totals
from batchscope.schemas.reasons import DeferralReason, Role, words
from batchscope.schemas.slo import Slo

_REASONS = words(DeferralReason)


class RingFold:
    """Folds the records of one ring. `slo` may be exchanged between chunks. One thread."""

    def __init__(self, hello: Mapping[str, Any], ring_id: int, *, slo: Slo | None) -> None:
        self.hello: dict[str, Any] = dict(hello)
        self.ring_id, self.slo = ring_id, slo
        self._block = hello.get("block_tokens")
        self._is_front_end = hello.get("role") == Role.FRONTEND.value
        self._steps = frontend if self._is_front_end else sequence
        self._state = State(offset=hello_offset(hello))

    def fold(self, chunk: Chunk) -> Rows:
        """Final rows of the next records."""
        out: dict[str, list[dict[str, Any]]] = {}
        self._state.totals.count("rejected_records", chunk.malformed)
        for piece in Cutter(chunk, self._state):
            rows = self._steps.fold_piece(self._state, piece, slo=self.slo, block=self._block)
            for table, parts in rows.items():
                out.setdefault(table, []).extend(parts)
        return self._joined(out)

    def end(self) -> Rows:
        """Final rows when nothing will follow: who lives ends as `unknown`, like at a BYE.

        Batches in flight stay open. A second time has nothing to say.
        """
        return self._joined(self._steps.fold_end(self._state, slo=self.slo, block=self._block))

    def open_rows(self) -> Rows:
        """What isn't final: rewritten at each commit."""
        state, deadlines = self._state, self.slo is not None and self.slo.deadlines is not None
        if self._is_front_end:
            tables = {"deliveries_open": deliveries.open_rows(state), "audit": state.audit.rows()}
            return {table: self._with_ring(columns) for table, columns in tables.items()}
        tables = {
            "runs_open": run_rows.state_columns(state),
            "requests_open": requests.open_rows(state, deadlines),
            "iterations_open": iterations.open_rows(state),
            "audit": state.audit.rows(),
        }
        return {table: self._with_ring(columns) for table, columns in tables.items()}

    def dump(self) -> bytes:
        """The whole state."""
        slo = self.slo
        return self._state.dump(
            {
                "hello": self.hello,
                "ring_id": self.ring_id,
                "slo": None if slo is None else [slo.name, slo.targets, slo.version],
            }
        )

    @classmethod
    def load(cls, blob: bytes) -> RingFold:
        """A fold that goes on where dump() was. Raises ValueError for another version's bytes."""
        state, extra = State.load(blob)
        told = extra["slo"]
        slo = None if told is None else Slo(told[0], tuple((t, n) for t, n in told[1]), told[2])
        fold = cls(extra["hello"], extra["ring_id"], slo=slo)
        fold._state = state
        return fold

    @property
    def totals(self) -> Totals:
        """Counters and histograms so far, a snapshot."""
        out = self._state.totals.copy()
        out.counters |= self._state.audit.counters()
        return out

    @property
    def gauges(self) -> dict[tuple[str, tuple[str, ...]], int]:
        """Values as of the latest record; what is unknown is left out."""
        state, known = self._state, self._state.gauges
        out: dict[tuple[str, tuple[str, ...]], int] = {
            (name, ()): known[name]
            for name in ("running_requests", "waiting_requests")
            if name in known
        }
        if {"kv_total", "kv_used", "kv_evictable"} <= known.keys():
            free = max(known["kv_total"] - known["kv_used"] - known["kv_evictable"], 0)
            for label, value in (
                ("used", known["kv_used"]),
                ("evictable", known["kv_evictable"]),
                ("free", free),
            ):
                out["kv_blocks", (label,)] = value
        if "kv_waste_tokens" in known:
            out["kv_waste_tokens", ()] = known["kv_waste_tokens"]
        out["live_requests", ()] = max(state.live_count, 0) if state.synced else len(state.live)
        if state.completed_unix != NULL:
            out["last_completion_timestamp_seconds", ()] = state.completed_unix
        if self.hello.get("unix_ns") is not None:
            out["engine_start_time_seconds", ()] = int(self.hello["unix_ns"])
        return out

    @property
    def left_out(self) -> tuple[int, dict[str, int]]:
        """(decisions so far, by reason who of those left out by the newest one still waits)."""
        counts = enumerate(self._state.deferred.tolist())
        return self._state.decisions, {str(_REASONS[code]): n for code, n in counts if n and code}

    def _joined(self, parts: Mapping[str, list[dict[str, Any]]]) -> Rows:
        return {table: self._with_ring(joined(each)) for table, each in parts.items()}

    def _with_ring(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        n = len(next(iter(columns.values())))
        bits = np.array([self.ring_id], np.uint64).astype(np.int64)
        return {"ring_id": bits.repeat(n), **columns}
