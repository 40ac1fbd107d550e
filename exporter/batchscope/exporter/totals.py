"""Counters and histograms of one ring, under the names of catalogue.py; integers, unscaled.

Mergeable by addition. Filled by the fold, shown by prom.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.schemas.catalogue import BY_NAME

Ints = npt.NDArray[np.int64]
Key = tuple[str, tuple[str, ...]]


@cache
def bounds(name: str) -> Ints:
    """Upper bucket bounds of a histogram in its counted integer unit."""
    metric = BY_NAME[name]
    return np.array([round(b / metric.scale) for b in metric.buckets], np.int64)


@dataclass
class Histogram:
    """counts[i]: values in (bound i-1, bound i], the last beyond all bounds; sum: of the values."""

    counts: Ints
    sum: int

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts, self.sum + other.sum)


@dataclass
class Totals:
    """Label VALUES are in the order of Metric.labels."""

    counters: dict[Key, int] = field(default_factory=dict)
    histograms: dict[Key, Histogram] = field(default_factory=dict)

    def count(self, name: str, n: int, *labels: str) -> None:
        """Add n to a counter; never creates one for 0."""
        if n:
            self.counters[name, labels] = self.counters.get((name, labels), 0) + int(n)

    def observe(
        self, name: str, values: Ints, *labels: str, weights: npt.ArrayLike | None = None
    ) -> None:
        """Add values, each as often as its weight; never creates a series for nothing."""
        if not len(values) or (weights is not None and not np.any(weights)):
            return
        edges = bounds(name)
        buckets = np.searchsorted(edges, values)
        counts = np.bincount(buckets, weights, len(edges) + 1).astype(np.int64)
        total = int(values.sum() if weights is None else np.dot(values, np.asarray(weights)))
        known = self.histograms.get((name, labels))
        if known is None:
            known = Histogram(np.zeros(len(edges) + 1, np.int64), 0)
        self.histograms[name, labels] = known + Histogram(counts, total)

    def copy(self) -> Totals:
        """A snapshot that no fold changes: histograms are replaced, never written to."""
        return Totals(dict(self.counters), dict(self.histograms))

    def __add__(self, other: Totals) -> Totals:
        out = self.copy()
        for key, n in other.counters.items():
            out.counters[key] = out.counters.get(key, 0) + n
        for key, h in other.histograms.items():
            out.histograms[key] = out.histograms[key] + h if key in out.histograms else h
        return out

    def to_json(self) -> dict[str, Any]:
        """Everything as plain lists."""
        histograms = [
            [name, labels, h.counts.tolist(), h.sum]
            for (name, labels), h in sorted(self.histograms.items())
        ]
        counters = [[name, labels, n] for (name, labels), n in sorted(self.counters.items())]
        return {"counters": counters, "histograms": histograms}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Totals:
        """The reverse of to_json."""
        counters = {(name, tuple(labels)): n for name, labels, n in data["counters"]}
        histograms = {
            (name, tuple(labels)): Histogram(np.array(counts, np.int64), total)
            for name, labels, counts, total in data["histograms"]
        }
        return cls(counters, histograms)
