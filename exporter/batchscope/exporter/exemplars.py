"""The last trace of every bucket of interval and time between tokens: from otel.py to prom.py.

Only iterations whose span is sent: an exemplar must lead somewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from batchscope.exporter.spans import Span
from batchscope.schemas.catalogue import BY_NAME, FINE_SECONDS

Series = tuple[str, tuple[str, ...]]
"""Name in the catalogue and the values of the metric's own labels."""
INTERVAL = BY_NAME["iteration_interval_seconds"].name
BETWEEN_TOKENS = BY_NAME["time_between_tokens_seconds"].name


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One observation that has a trace."""

    trace_id: str
    value_s: float
    unix_s: float


class Exemplars:
    """Per engine (values of ENGINE_LABELS), series and bucket the newest one."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, ...], dict[Series, dict[int, Exemplar]]] = {}

    def note(self, engine: tuple[str, ...], span: Span) -> None:
        """Remembers an iteration for its interval, and for the tokens that waited just that."""
        interval = span.attributes.get("batchscope.iteration.interval")
        if not isinstance(interval, float):
            return
        exemplar = Exemplar(f"{span.trace_id:032x}", interval, span.end_ns * 1e-9)
        phase = str(span.attributes.get("batchscope.iteration.phase"))
        series: list[Series] = [(INTERVAL, (phase,))]
        if span.attributes.get("batchscope.iteration.decode_gap_members"):
            series.append((BETWEEN_TOKENS, ()))
        by_series = self._newest.setdefault(engine, {})
        for key in series:
            by_series.setdefault(key, {})[bisect_left(FINE_SECONDS, interval)] = exemplar

    def of(self, engine: tuple[str, ...]) -> dict[Series, dict[int, Exemplar]]:
        """Series -> bucket index -> exemplar. A copy: the sink's thread goes on writing."""
        found = self._newest.get(engine, {})
        return {series: dict(buckets) for series, buckets in list(found.items())}
