"""Capacity: the highest rate at which a wanted share of requests meets its SLO.

Doubling until it fails, then bisection: both ends of the bracket were measured. The definition is
DistServe's (Zhong et al., OSDI 2024), but for the division by GPUs. Attainment need not fall
evenly with the rate, so every point is kept and shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One measured rate. attainment: 0..1, None when no request could be judged. more: what else
    the measurement says, JSON-able. fewest: a lower rate would offer the very same requests.
    """

    rate_per_s: float
    attainment: float | None
    more: dict[str, Any]
    fewest: bool = False


@dataclass(frozen=True)
class Search:
    """What to find and where to stop.

    wanted: attainment that must be reached. first_per_s: where to begin. precision: the bracket is
    narrow enough when high / low <= 1 + precision. most_points bounds it in any case.
    """

    wanted: float
    first_per_s: float
    precision: float = 0.05
    most_points: int = 16


@dataclass(frozen=True)
class Capacity:
    """low: highest measured rate that reached it, high: lowest above it that did not (requests/s);
    None: none was measured. whole: the bracket is as narrow as it was wanted. bottomed: the way
    down ended where a lower rate would have told nothing new.
    """

    low_per_s: float | None
    high_per_s: float | None
    points: tuple[Point, ...]
    whole: bool
    bottomed: bool


def capacity(search: Search, measure: Callable[[float], Point]) -> Capacity:
    """Measure until the bracket is narrow enough, the points are used up, or a lower rate, where
    none has reached it yet, would offer the same requests again.
    """
    points: list[Point] = []
    low = high = None
    bottomed = False
    while (
        len(points) < search.most_points
        and not bottomed
        and not _narrow(low, high, search.precision)
    ):
        points.append(measure(_next(search, low, high)))
        if reaches(points[-1], search.wanted):
            low = points[-1].rate_per_s
        else:
            high = points[-1].rate_per_s
        bottomed = low is None and points[-1].fewest
    return Capacity(low, high, tuple(points), _narrow(low, high, search.precision), bottomed)


def reaches(point: Point, wanted: float) -> bool:
    """What can't be judged reaches nothing."""
    return point.attainment is not None and point.attainment >= wanted


def _next(search: Search, low: float | None, high: float | None) -> float:
    if low is None and high is None:
        return search.first_per_s
    if high is None:
        assert low is not None
        return 2 * low
    return high / 2 if low is None else (low + high) / 2


def _narrow(low: float | None, high: float | None, precision: float) -> bool:
    return low is not None and high is not None and high <= low * (1 + precision)
