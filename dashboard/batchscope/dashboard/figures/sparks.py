"""Sparklines: answers by time bucket laid on a regular grid, for the Now page.

A bucket without iterations is 0 for a rate (the engine was watched and did nothing), unknown for a
latency, and unknown for both before the engine attached and where records were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Values = list[float | None]


@dataclass(frozen=True)
class Grid:
    """`points` buckets over [from_ns, to_ns), and the stretches of it that were not seen."""

    from_ns: int
    to_ns: int
    points: int
    unseen: tuple[tuple[int, int], ...] = ()

    @property
    def bucket_ns(self) -> int:
        """Width of a bucket, as the queries compute it."""
        return max((self.to_ns - self.from_ns) // max(self.points, 1), 1)

    def lay(
        self, rows: Sequence[Row], value: Callable[[Row], float | None], *, missing: float | None
    ) -> Values:
        """One value a bucket; `missing` where the answer has no row."""
        laid: Values = [self._absent(i, missing) for i in range(self.points)]
        for row in rows:
            i = (row["unix_ns"] - self.from_ns) // self.bucket_ns
            if 0 <= i < self.points:
                laid[i] = value(row)
        return laid

    def rate(self, rows: Sequence[Row], name: str) -> Values:
        """A column that counts, per second."""
        return self.lay(rows, lambda row: (row[name] or 0) * 1e9 / self.bucket_ns, missing=0.0)

    def plain(self, rows: Sequence[Row], name: str) -> Values:
        """A column as it is."""
        return self.lay(rows, lambda row: row[name], missing=None)

    def _absent(self, i: int, missing: float | None) -> float | None:
        start = self.from_ns + i * self.bucket_ns
        hidden = any(a < start + self.bucket_ns and start < b for a, b in self.unseen)
        return None if hidden else missing


def unseen(
    losses: Sequence[Row], *, attached_ns: int | None, to_ns: int
) -> tuple[tuple[int, int], ...]:
    """Stretches nobody watched: before the engine attached, and lost records."""
    before = [(0, attached_ns)] if attached_ns is not None else []
    lost = [(r["unix_ns"], r["until_unix_ns"] or to_ns) for r in losses if r["kind"] == "loss"]
    return (*before, *lost)
