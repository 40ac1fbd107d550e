"""S11: a figure of merit must not be improved by throwing away what went wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.shapes.observed import Observed
from tests.shapes.runs import config, poisson

from batchscope.schemas.slo import Slo
from batchscope.workload.trace import NEVER_NS, Trace

SLO = Slo.parse("e2e<=6s")


def judged(seen: Observed) -> tuple[float, float]:
    """(attained / those that reached a verdict, attained / arrived)."""
    counters = seen.fold.totals.counters
    attained, missed = (
        counters.get(("slo_requests", (SLO.name, verdict)), 0) for verdict in ("met", "missed")
    )
    return attained / (attained + missed), attained / len(seen.run.served)


def without_the_late(trace: Trace, seen: Observed) -> Trace:
    """The same traffic; who has missed the SLO is dropped a few tokens before the end.

    At a load and with an SLO that nobody misses for another's sake, so that only the count changes:
    what the dropped would leave free in a queue might serve others, and that is no trick.
    """
    leaves = np.full(len(trace), NEVER_NS)
    for row, served in enumerate(seen.run.served):
        late = served.token_ns[-1] - served.seq.arrival_ns > SLO.targets[0][1]
        if late:
            leaves[row] = served.token_ns[-5] - served.seq.arrival_ns
    return replace(trace, abort_after_ns=leaves)


def test_shape_s11_dropping_late_requests_does_not_raise_what_was_attained(tmp_path: Path) -> None:
    trace = poisson("sharegpt", 200, rate_per_s=0.3)
    kept = Observed(config("chunked"), trace, tmp_path, slo=SLO)
    dropped = Observed(config("chunked"), without_the_late(trace, kept), tmp_path, slo=SLO)
    before, after = judged(kept), judged(dropped)
    assert dropped.run.engine.totals.aborted > 50
    assert before[0] < 0.9 < 1 == after[0], "by those who were judged all is well now"
    # seen: one of 200, late by a hair, is in time because another's last steps were not run
    assert abs(after[1] - before[1]) <= 0.01
