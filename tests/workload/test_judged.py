"""Figures and verdicts of a client: from which instant, over which requests, joint over terms."""

from array import array
from collections import Counter
from typing import Any

import pytest

from batchscope.schemas.reasons import Verdict
from batchscope.schemas.slo import Slo
from batchscope.workload.judged import Goodput, Terms, figures, summary, verdict
from batchscope.workload.outcome import ENDED_BADLY, Outcome, Status
from batchscope.workload.trace import Arrival

MS = 1_000_000
SLO = Slo.parse("ttft<=100ms,tbt_p99<=20ms")


def outcome(*tokens_ms: float, at_ms: int = 0, status: Status = Status.OK, **known: Any) -> Outcome:
    one = Outcome(Arrival(0, 0, 8, len(tokens_ms) or 1), "r-0", at_ms * MS, status=status)
    one.token_ns = array("q", [round(ms * MS) for ms in tokens_ms])
    one.ended_ns = one.last_ns or at_ms * MS
    for name, value in known.items():
        setattr(one, name, value)
    return one


def test_latencies_count_from_the_instant_that_the_trace_wanted() -> None:
    late = outcome(90, 100, at_ms=10, sent_ns=60 * MS)
    assert (late.ttft_ns, late.e2e_ns, late.lateness_ns) == (80 * MS, 90 * MS, 50 * MS)


def test_quantiles_of_gaps_are_gaps_that_occurred() -> None:
    one = outcome(50, 60, 70, 75, 175, output_tokens=5)
    seen = figures(one)
    assert {name: (value or 0) // MS for name, value in seen.items()} == {
        "ttft": 50,
        "tbt_p50": 10,
        "tbt_p90": 100,
        "tbt_p95": 100,
        "tbt_p99": 100,
        "tbt_max": 100,
        "tpot": 31,
        "e2e": 175,
    }
    assert seen["tpot"] == 125 * MS // 4


def test_tpot_divides_by_the_servers_own_count_of_tokens() -> None:
    merged = outcome(50, 90, output_tokens=9)  # nine tokens in two pieces
    assert figures(merged)["tpot"] == 40 * MS // 8


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (outcome(100, 120), Verdict.MET),
        (outcome(101, 120), Verdict.MISSED),
        (outcome(100, 121), Verdict.MISSED),
        (outcome(100), Verdict.UNDETERMINED),
        (outcome(101), Verdict.MISSED),
        (outcome(), Verdict.UNDETERMINED),
        *((outcome(10, 20, status=status), kind) for status, kind in ENDED_BADLY.items()),
    ],
)
def test_a_verdict_is_joint_and_what_cant_be_judged_is_not_met(
    one: Outcome, expected: Verdict
) -> None:
    assert verdict(one, SLO) is expected


def test_every_status_has_a_verdict_but_the_one_that_is_judged() -> None:
    assert set(Status) - ENDED_BADLY.keys() == {Status.OK}


def test_gaps_of_an_answer_that_was_cut_short_are_no_quantiles() -> None:
    seen = figures(outcome(10, 20, 30, status=Status.BROKEN))
    assert (seen["ttft"], seen["tbt_p50"], seen["e2e"]) == (10 * MS, None, None)


def test_attainment_counts_failures_and_shed_against_and_leavers_apart() -> None:
    good = Goodput(
        Counter(
            {
                Verdict.MET: 6,
                Verdict.MISSED: 1,
                Verdict.FAILED: 2,
                Verdict.SHED: 1,
                Verdict.ABORTED: 5,
                Verdict.UNDETERMINED: 5,
            }
        )
    )
    assert (good.attainment, good.met_of_arrived) == (0.6, 0.3)
    assert Goodput(Counter({Verdict.ABORTED: 1})).attainment is None


def test_the_warm_up_is_in_no_figure() -> None:
    cold = outcome(900, 910, at_ms=0)
    warm = [outcome(1000 + n, 1010 + n, at_ms=990 + n, output_tokens=2) for n in range(10)]
    terms = Terms(SLO, warm_up_ns=500 * MS)
    counted = terms.counted([cold, *warm], start_ns=0)
    told = summary(counted, since_ns=500 * MS, slo=SLO)
    assert told["requests"] == 10
    assert told["ttft_ns"]["max"] == 10 * MS
    assert told["window_ns"] == (1019 - 500) * MS
    assert told["completed_per_s"] == pytest.approx(10 / 0.519)
    assert told["offered_per_s"] == pytest.approx(1000)
    assert told["goodput"]["met"] == 10
    assert told["goodput"]["met_per_s"] == pytest.approx(10 / 0.519)


def test_where_nothing_is_known_nothing_is_said() -> None:
    told = summary([], since_ns=0, slo=None)
    names = ("window_ns", "offered_per_s", "completed_per_s", "ttft_ns", "tbt_ns", "goodput")
    assert [told[name] for name in names] == [None] * 6


def test_tokens_asked_stand_beside_tokens_told() -> None:
    told = summary(
        [
            outcome(1, 2, 3, prompt_tokens=9, output_tokens=3),
            outcome(1, 2),
            outcome(1, status=Status.FAILED),
        ],
        since_ns=0,
        slo=None,
    )
    assert told["tokens"] == {
        "prompt_asked": 16,
        "prompt_told": 9,
        "output_asked": 5,
        "output_told": 3,
        "usage_missing": 1,
    }
