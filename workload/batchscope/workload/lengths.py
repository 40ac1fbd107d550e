"""Length laws: how many tokens prompts and outputs have.

A law is called with a generator and a count and draws that many integers >= 1. A *pair* law draws
(prompt, output) together, because in some traces the two are tied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from batchscope.workload.trace import Column

LengthLaw = Callable[[np.random.Generator, int], Column]
PairLaw = Callable[[np.random.Generator, int], tuple[Column, Column]]


@dataclass(frozen=True)
class Fixed:
    """Every request alike."""

    length_tokens: int

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:  # noqa: ARG002
        """`requests` times the same."""
        return np.full(requests, self.length_tokens, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Every length from `low_tokens` to `high_tokens`, both included, as likely."""

    low_tokens: int
    high_tokens: int

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Independent draws."""
        return rng.integers(self.low_tokens, self.high_tokens, requests, endpoint=True)


@dataclass(frozen=True)
class Quantiles:
    """A law that has exactly the given quantiles (probability -> tokens), at least two.

    Piecewise log-normal: log length is linear in the normal score between quantiles, and goes on
    beyond the outermost ones as between the nearest two, within low_tokens and high_tokens.
    One log-normal can't do it: through p50 and p90 of the code preset its p99 is 14,507, not 7,436.
    """

    quantiles: Mapping[float, int]
    low_tokens: int
    high_tokens: int

    def __call__(self, rng: np.random.Generator, requests: int) -> Column:
        """Independent draws."""
        return self._at(rng.standard_normal(requests))

    def quantile(self, probability: float) -> int:
        """The length that a share `probability` of requests does not exceed."""
        return int(self._at(np.array([NormalDist().inv_cdf(probability)]))[0])

    def _at(self, scores: np.typing.NDArray[np.float64]) -> Column:
        knots = np.array([NormalDist().inv_cdf(p) for p in sorted(self.quantiles)])
        logs = np.log([self.quantiles[p] for p in sorted(self.quantiles)])
        slopes = np.diff(logs) / np.diff(knots)
        piece = np.clip(np.searchsorted(knots, scores) - 1, 0, len(slopes) - 1)
        lengths = np.exp(logs[piece] + slopes[piece] * (scores - knots[piece]))
        within = np.clip(lengths, self.low_tokens, self.high_tokens)
        return np.asarray(np.rint(within), dtype=np.int64)


@dataclass(frozen=True)
class Independent:
    """Prompt and output drawn apart. In the Azure 2023 traces the correlation of their logarithms
    is 0.00 (code) and 0.09 (conversation).
    """

    prompt: LengthLaw
    output: LengthLaw

    def __call__(self, rng: np.random.Generator, requests: int) -> tuple[Column, Column]:
        """(prompt, output) columns."""
        return self.prompt(rng, requests), self.output(rng, requests)


@dataclass(frozen=True)
class LengthTable:
    """Pairs as a lengths-only file has them; as a pair law it draws whole rows with replacement."""

    prompt_tokens: Column
    output_tokens: Column
    facts: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __call__(self, rng: np.random.Generator, requests: int) -> tuple[Column, Column]:
        """(prompt, output) columns of `requests` rows drawn from the table."""
        rows = rng.integers(0, len(self), requests)
        return self.prompt_tokens[rows], self.output_tokens[rows]
