"""A replay on its way into the exporter's store, where it stands beside the engine's figures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from batchscope.exporter.cli import exporter_client
from batchscope.workload import judged
from batchscope.workload.outcome import Outcome
from batchscope.workload.replay import Played

POST_ROWS = 60
"""A body may have 64 KiB, a row has up to 1,000 bytes."""
TRAFFIC_BYTES = 16_384
SETTLE_S, POLL_S = 5.0, 0.25


class HandIn:
    """Hands in one replay. `to_unix_ns` + its instants are wall clock. `recorded_by`: the engines
    that had any of it, once all() has returned.
    """

    def __init__(self, url: str, seen: Played, to_unix_ns: int, terms: judged.Terms) -> None:
        self._url, self._seen, self._to_unix_ns, self._terms = url, seen, to_unix_ns, terms
        self.run = seen.outcomes[0].request_id.rpartition("-")[0] if seen.outcomes else "empty"
        self.recorded_by: list[str] = []

    def all(self, told: Mapping[str, Any], *, name: str | None) -> list[dict[str, Any]]:
        """Post everything; quantiles of both sides, as soon as the store has them. Raises Refused,
        Unreachable.
        """
        exporter_client.post(self._url, "/api/v1/client-runs", self._whole(told, name))
        rows = [self._row(one) for one in self._seen.outcomes]
        for first in range(0, len(rows), POST_ROWS):
            content = {"run": self.run, "requests": rows[first : first + POST_ROWS]}
            exporter_client.post(self._url, "/api/v1/client-requests", content)
        self._settle(len(rows))
        columns = self._columns("client_latency")
        values = zip(*columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]

    def _whole(self, told: Mapping[str, Any], name: str | None) -> dict[str, Any]:
        seen, slo = self._seen, self._terms.slo
        traffic = json.dumps(told["traffic"], default=str)
        return {
            "run": self.run,
            "name": name,
            "target": told["target"][:256],
            "began_unix_ns": seen.start_ns + self._to_unix_ns,
            "unix_ns": seen.end_ns + self._to_unix_ns,
            "warm_up_ns": self._terms.warm_up_ns,
            "requests": len(seen.outcomes),
            "most_under_way": seen.most_under_way,
            "under_way_cap": seen.cap,
            "interrupted": seen.interrupted,
            "slo": None if slo is None else str(slo),
            "traffic": traffic if len(traffic) <= TRAFFIC_BYTES else "{}",
        }

    def _row(self, one: Outcome) -> dict[str, Any]:
        ended_ns = one.scheduled_ns if one.ended_ns is None else one.ended_ns
        return {
            **{name: getattr(one, name) for name in _SAME},
            "ordinal": one.arrival.ordinal,
            "names": _names(one),
            "scheduled_unix_ns": one.scheduled_ns + self._to_unix_ns,
            "unix_ns": ended_ns + self._to_unix_ns,
            "warm_up": self._terms.warms_up(one, start_ns=self._seen.start_ns),
            "status": str(one.status),
            "verdict": self._terms.verdict(one),
            **{f"{term}_ns": value for term, value in judged.figures(one).items()},
        }

    def _settle(self, rows: int) -> None:
        """Wait, not for ever, until the store has all rows and the engine's end of each answer."""
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            stored = self._columns("client_requests")
            self.recorded_by = sorted({name for name in stored["engine"] if name})
            ends = zip(stored["status"], stored["engine_finish_reason"], strict=True)
            if len(stored["ordinal"]) >= rows and ("ok", None) not in ends:
                return
            time.sleep(POLL_S)

    def _columns(self, query: str) -> dict[str, list[Any]]:
        answer = exporter_client.get(self._url, f"/api/v1/query/{query}?run={self.run}")
        columns: dict[str, list[Any]] = answer["columns"]
        return columns


_SAME = (
    *("request_id", "http_status", "finish_reason"),
    *("prompt_tokens", "output_tokens", "lateness_ns"),
)


def _names(one: Outcome) -> list[str]:
    """Other ids under which an engine may have recorded it: older vLLM adds the prompt's index."""
    answer = one.answer_id
    names = [one.echoed_id, *([answer, f"{answer}-0"] if answer else [])]
    return [name[:256] for name in names if name]
