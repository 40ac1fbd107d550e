"""Arrival and length laws against their closed forms."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscope.workload.arrivals import (
    ArrivalLaw,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    QuantileGaps,
    stretched,
)
from batchscope.workload.lengths import Fixed, Independent, LengthTable, Quantiles, Uniform
from batchscope.workload.synthesis import facts_of, synthesise
from batchscope.workload.trace import Trace

N = 200_000
ON_OFF_CV = (1 + 2 * (0.25 / 4) * 3**2 * 4**2 / 1) ** 0.5
"""Rate 4, on 1 s, off 3 s: the mean gap while on is 1/4 of 1/4 s."""


def gaps_of(law: ArrivalLaw, requests: int = N, seed: int = 7) -> npt.NDArray[np.float64]:
    at_ns = law(np.random.default_rng(seed), requests)
    assert at_ns.dtype == np.int64
    assert at_ns[0] == 0
    return np.asarray(np.diff(at_ns) / 1e9)


@pytest.mark.parametrize(
    ("law", "cv"),
    [
        (Constant(4), 0),
        (Poisson(4), 1),
        (Gamma(4, cv=0.5), 0.5),
        (Gamma(4, cv=3), 3),
        (OnOff(4, on_ns=10**9, off_ns=3 * 10**9), ON_OFF_CV),
    ],
)
def test_a_law_has_its_rate_and_its_burstiness(law: ArrivalLaw, cv: float) -> None:
    gaps = gaps_of(law)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_on_off_is_silent_for_the_share_of_time_it_is_off() -> None:
    gaps = gaps_of(OnOff(100, on_ns=10**9, off_ns=3 * 10**9))
    assert gaps[gaps > 0.1].sum() / gaps.sum() == pytest.approx(0.75, abs=0.03)


def test_gaps_through_quantiles_have_the_quantiles_and_the_cv_of_the_closed_form() -> None:
    law = QuantileGaps(2.0, ((0.0, 0.1), (0.5, 1.0), (0.9, 4.0), (1.0, 40.0)))
    gaps = gaps_of(law)
    assert gaps.mean() == pytest.approx(0.5, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(law.cv, rel=0.02)
    ratio = np.quantile(gaps, 0.9) / np.quantile(gaps, 0.5)
    assert ratio == pytest.approx(4.0, rel=0.03)


def test_stretching_gives_exactly_the_rate_and_leaves_the_shape() -> None:
    at_ns = np.array([0, 10, 10, 40, 60])
    assert stretched(at_ns, rate_per_s=2.0).tolist() == [
        0,
        333_333_333,
        333_333_333,
        1_333_333_333,
        2_000_000_000,
    ]
    assert stretched(np.array([0]), rate_per_s=2.0).tolist() == [0]


def test_instants_never_fall() -> None:
    for law in (Gamma(100, cv=13), OnOff(50, on_ns=10**8, off_ns=10**10)):
        assert (gaps_of(law, requests=5000) >= 0).all()


@given(
    low=st.integers(2, 500),
    rises=st.tuples(*[st.floats(1.0, 20.0)] * 2),
    seed=st.integers(0, 2**32),
)
def test_fitted_quantiles_come_back_whatever_the_three_are(
    low: int, rises: tuple[float, float], seed: int
) -> None:
    p50, p90 = low, int(low * rises[0])
    p99 = int(p90 * rises[1])
    law = Quantiles({0.5: p50, 0.9: p90, 0.99: p99}, low_tokens=1, high_tokens=10 * p99)
    assert [law.quantile(p) for p in (0.5, 0.9, 0.99)] == [p50, p90, p99]
    lengths = law(np.random.default_rng(seed), 100)
    assert lengths.min() >= 1
    assert lengths.max() <= 10 * p99


def test_the_error_of_the_fit_is_that_of_sampling_alone() -> None:
    law = Quantiles({0.5: 1469, 0.9: 5187, 0.99: 7436}, low_tokens=1, high_tokens=8000)
    lengths = law(np.random.default_rng(3), N)
    for probability, tokens in law.quantiles.items():
        below = float((lengths <= tokens).mean())
        assert below == pytest.approx(probability, abs=4 * (0.25 / N) ** 0.5)


def test_uniform_and_fixed_lengths_reach_both_ends() -> None:
    rng = np.random.default_rng(1)
    assert set(Uniform(3, 6)(rng, 1000).tolist()) == {3, 4, 5, 6}
    assert Fixed(9)(rng, 3).tolist() == [9, 9, 9]


def test_a_length_table_is_drawn_by_whole_rows() -> None:
    table = LengthTable(np.array([1, 20, 300]), np.array([4, 50, 600]), {"source": "s"})
    prompt, output = table(np.random.default_rng(0), 3000)
    pairs, counts = np.unique(np.stack([prompt, output]), axis=1, return_counts=True)
    assert pairs.T.tolist() == [[1, 4], [20, 50], [300, 600]]
    assert counts.min() > 900
    assert facts_of(table) == {"law": "resampled", "source": "s"}


def test_the_same_seed_draws_the_same_trace_and_laws_do_not_disturb_each_other() -> None:
    def draw(seed: int, arrivals: ArrivalLaw) -> Trace:
        pair = Independent(Uniform(1, 900), Uniform(1, 90))
        return synthesise(arrivals=arrivals, lengths=pair, requests=50, seed=seed, facts={})

    one, two = draw(5, Poisson(1)), draw(5, Poisson(1))
    assert (one.at_ns == two.at_ns).all()
    assert (one.prompt_tokens == two.prompt_tokens).all()
    other = draw(5, Constant(1))
    assert (other.prompt_tokens == one.prompt_tokens).all()
    assert (draw(6, Poisson(1)).at_ns != one.at_ns).any()


def test_instants_and_lengths_are_drawn_from_streams_of_their_own() -> None:
    pair = Independent(Uniform(0, 10**6), Fixed(1))
    as_arrivals = synthesise(
        arrivals=Uniform(0, 10**6), lengths=pair, requests=100, seed=5, facts={}
    )
    assert (as_arrivals.at_ns != as_arrivals.prompt_tokens).any()


def test_a_law_describes_itself_as_data() -> None:
    facts = facts_of(Independent(Quantiles({0.5: 2, 0.9: 5}, 1, 9), Fixed(3)))
    assert facts["prompt"]["quantiles"] == {"0.5": 2, "0.9": 5}
    assert facts["output"] == {"law": "fixed", "length_tokens": 3}
    assert facts_of(OnOff(1, on_ns=2, off_ns=3))["law"] == "on_off"
