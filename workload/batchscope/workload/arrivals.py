"""Arrival laws: when requests come, whatever the engine is doing.

A law is called with a generator and a count and gives that many instants in ns, rising from 0.
Every law's mean rate is its `rate_per_s`; they differ in how much of the load comes at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchscope.workload.cells import NS_PER_S
from batchscope.workload.trace import Column

ArrivalLaw = Callable[[np.random.Generator, int], Column]
Gaps = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Constant:
    """A metronome: CV 0."""

    rate_per_s: float

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:  # noqa: ARG002
        """Instants in ns."""
        return _instants(np.full(requests, 1 / self.rate_per_s))


@dataclass(frozen=True)
class Poisson:
    """Independent clients: CV 1."""

    rate_per_s: float

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Instants in ns."""
        return _instants(rng.exponential(1 / self.rate_per_s, requests))


@dataclass(frozen=True)
class Gamma:
    """Gamma gaps of a given CV (standard deviation over mean).

    Far above CV 3 it stops looking like traffic: at CV 13 and 2.6 requests/s 86 % of the gaps are
    below 1 ns, so that whole bursts share an instant. `QuantileGaps` can do better.
    """

    rate_per_s: float
    cv: float

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Instants in ns."""
        shape = 1 / self.cv**2
        return _instants(rng.gamma(shape, 1 / (shape * self.rate_per_s), requests))


@dataclass(frozen=True)
class OnOff:
    """Bursts: a Poisson stream that is switched on for `on_ns` and off for `off_ns` on average,
    both exponential. CV^2 = 1 + 2 m off^2 rate^2 / on, m being the mean gap while on.
    """

    rate_per_s: float
    on_ns: int
    off_ns: int

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Instants in ns."""
        on_s, off_s = self.on_ns / NS_PER_S, self.off_ns / NS_PER_S
        busy = rng.exponential(on_s / (on_s + off_s) / self.rate_per_s, requests)
        # while on, the switch goes off as a Poisson process: so many silences lie inside a gap
        silences = rng.poisson(busy / on_s)
        return _instants(busy + rng.gamma(np.maximum(silences, 1), off_s) * (silences > 0))


@dataclass(frozen=True)
class QuantileGaps:
    """Gaps whose quantile function runs log-linearly through `knots`: (probability, gap), from
    probability 0 to 1, gaps in any unit, since only their shape counts.
    """

    rate_per_s: float
    knots: tuple[tuple[float, float], ...]

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Instants in ns."""
        probabilities, gaps = np.array(self.knots).T
        drawn = np.exp(np.interp(rng.random(requests), probabilities, np.log(gaps)))
        return _instants(drawn / (self._moment(1) * self.rate_per_s))

    @property
    def cv(self) -> float:
        """Of the law itself, in closed form."""
        mean = self._moment(1)
        return float(np.sqrt(self._moment(2) / mean**2 - 1))

    def _moment(self, power: int) -> float:
        """E[gap^power]: over a piece it is dp * (b^power - a^power) / (power * ln(b / a))."""
        probabilities, gaps = np.array(self.knots).T
        rise = np.diff(gaps**power) / (power * np.diff(np.log(gaps)))
        return float(np.sum(np.diff(probabilities) * rise))


def stretched(at_ns: Column, *, rate_per_s: float) -> Column:
    """The same arrivals, their time stretched so that the mean gap is exactly 1 / rate_per_s.

    With heavy gaps the rate of a minute is chance: of two minutes one has half the load.
    """
    if len(at_ns) < 2 or at_ns[-1] == 0:
        return at_ns
    span_ns = (len(at_ns) - 1) * NS_PER_S / rate_per_s
    return np.asarray(np.rint(at_ns * (span_ns / at_ns[-1])), dtype=np.int64)


def _instants(gaps_s: Gaps) -> Column:
    """The first arrival is the start of the trace, as in a recorded one."""
    at_s = np.cumsum(gaps_s) - (gaps_s[0] if len(gaps_s) else 0)
    return np.asarray(np.rint(at_s * NS_PER_S), dtype=np.int64)
