"""Figures of a replay: latencies, verdicts and goodput as the client saw them.

All figures are of the requests scheduled after the warm-up. Verdicts and quantiles are those of the
engine's side (schemas/slo.py: joint over the terms; a quantile is a value that occurs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchscope.schemas.reasons import Verdict
from batchscope.schemas.slo import Slo
from batchscope.workload.outcome import ENDED_BADLY, Outcome, Status

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
Figures = dict[str, int | None]


def figures(outcome: Outcome) -> Figures:
    """A request's latencies by the names of SLO terms, in ns; None where there is none. Those of
    the gaps are None before the answer is whole: gaps that didn't come would be missing.
    """
    gaps = outcome.gaps_ns if outcome.status is Status.OK else []
    tbt: Figures = {f"tbt_{name}": None for name in (*QUANTILES, "max")}
    if gaps:
        values = np.quantile(gaps, list(QUANTILES.values()), method="inverted_cdf").tolist()
        tbt |= {f"tbt_{n}": int(v) for n, v in zip(QUANTILES, values, strict=True)}
        tbt["tbt_max"] = max(gaps)
    return {"ttft": outcome.ttft_ns, **tbt, "tpot": outcome.tpot_ns, "e2e": outcome.e2e_ns}


def verdict(outcome: Outcome, slo: Slo) -> Verdict:
    """Joint over the SLO's terms; one that can't be judged leaves it open unless another missed."""
    if outcome.status in ENDED_BADLY:
        return ENDED_BADLY[outcome.status]
    seen = figures(outcome)
    values = [(seen[term], target) for term, target in slo.targets]
    if any(value is not None and value > target for value, target in values):
        return Verdict.MISSED
    return Verdict.UNDETERMINED if any(v is None for v, _ in values) else Verdict.MET


@dataclass(frozen=True)
class Goodput:
    """Verdicts counted. `attainment` is met / all that count against a server: met, missed, failed
    and shed; None when there are none. Who left and who can't be judged is counted apart.
    """

    counts: Counter[Verdict]

    @property
    def attainment(self) -> float | None:
        """0..1."""
        against = (Verdict.MET, Verdict.MISSED, Verdict.FAILED, Verdict.SHED)
        judged = sum(self.counts[kind] for kind in against)
        return self.counts[Verdict.MET] / judged if judged else None

    @property
    def met_of_arrived(self) -> float | None:
        """Met / all that arrived, whatever became of them."""
        arrived = self.counts.total()
        return self.counts[Verdict.MET] / arrived if arrived else None


def goodput(outcomes: Iterable[Outcome], slo: Slo) -> Goodput:
    """Verdicts of these requests."""
    return Goodput(Counter(verdict(outcome, slo) for outcome in outcomes))


@dataclass(frozen=True)
class Terms:
    """By what a replay is judged: an SLO, and how long from the start nothing is counted."""

    slo: Slo | None = None
    warm_up_ns: int = 0

    def warms_up(self, outcome: Outcome, *, start_ns: int) -> bool:
        """Whether it was scheduled before the warm-up was over."""
        return outcome.scheduled_ns < start_ns + self.warm_up_ns

    def counted(self, outcomes: Iterable[Outcome], *, start_ns: int) -> list[Outcome]:
        """Those after the warm-up."""
        return [one for one in outcomes if not self.warms_up(one, start_ns=start_ns)]

    def verdict(self, outcome: Outcome) -> str | None:
        """In a word; None without an SLO."""
        return None if self.slo is None else str(verdict(outcome, self.slo))


def summary(counted: Sequence[Outcome], *, since_ns: int, slo: Slo | None) -> dict[str, Any]:
    """What a replay showed, JSON-able; None where nothing can be said. Rates are over the time from
    `since_ns` (start of the trace, or end of the warm-up) to the last end. TBT is token-weighted.
    """
    ends = [one.ended_ns for one in counted if one.ended_ns is not None]
    window_ns = max(ends) - since_ns if ends else None
    output = sum(one.counted_tokens for one in counted)
    statuses = Counter(str(one.status) for one in counted)
    return {
        "requests": len(counted),
        "statuses": dict(statuses),
        "window_ns": window_ns,
        "offered_per_s": _offered(counted),
        "completed_per_s": _per_s(statuses["ok"], window_ns),
        "output_tokens_per_s": _per_s(output, window_ns),
        "ttft_ns": spread(one.ttft_ns for one in counted),
        "tbt_ns": spread(gap for one in counted for gap in one.gaps_ns),
        "tpot_ns": spread(one.tpot_ns for one in counted),
        "e2e_ns": spread(one.e2e_ns for one in counted),
        "lateness_ns": spread(one.lateness_ns for one in counted),
        "tokens": _tokens(counted),
        "goodput": None if slo is None else _goodput(counted, slo, window_ns),
    }


def spread(values: Iterable[int | None]) -> dict[str, Any] | None:
    """Count, mean, quantiles and max of what is known; None when nothing is."""
    known = np.array([value for value in values if value is not None], dtype=np.int64)
    if not len(known):
        return None
    marks = np.quantile(known, list(QUANTILES.values()), method="inverted_cdf").tolist()
    named = dict(zip(QUANTILES, marks, strict=True))
    return {"n": len(known), "mean": float(known.mean()), **named, "max": int(known.max())}


def _offered(counted: Sequence[Outcome]) -> float | None:
    """Arrivals per second: one by the mean gap between them."""
    at = [one.scheduled_ns for one in counted]
    return _per_s(len(at) - 1, max(at) - min(at)) if len(at) > 1 else None


def _per_s(number: int, window_ns: int | None) -> float | None:
    return number * 1e9 / window_ns if window_ns else None


def _tokens(counted: Sequence[Outcome]) -> dict[str, int]:
    """What was asked for of the whole answers, beside what the server counted."""
    whole = [one for one in counted if one.status is Status.OK]
    return {
        "prompt_asked": sum(one.arrival.prompt_tokens for one in whole),
        "prompt_told": sum(one.prompt_tokens or 0 for one in whole),
        "output_asked": sum(one.arrival.output_tokens for one in whole),
        "output_told": sum(one.output_tokens or 0 for one in whole),
        "usage_missing": sum(one.output_tokens is None for one in whole),
    }


def _goodput(counted: Sequence[Outcome], slo: Slo, window_ns: int | None) -> dict[str, Any]:
    good = goodput(counted, slo)
    return {
        "slo": str(slo),
        **{str(kind): good.counts[kind] for kind in Verdict},
        "attainment": good.attainment,
        "met_of_arrived": good.met_of_arrived,
        "met_per_s": _per_s(good.counts[Verdict.MET], window_ns),
    }
