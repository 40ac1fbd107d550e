"""Client statistics: counts per client and window come back exactly, gaps by their pattern."""

from pathlib import Path

import numpy as np
import pytest

from batchscope.workload.clients import ClientTable, Window
from batchscope.workload.describe import describe
from batchscope.workload.lengths import Fixed, Independent
from batchscope.workload.read import read

S = 10**9
LENGTHS = Independent(Fixed(10), Fixed(2))


def table(*windows: Window, window_s: int = 600) -> ClientTable:
    starts = [window.start_ns for window in windows]
    return ClientTable(windows, min(starts), window_s * S, {"format": "clients"})


def test_a_client_sends_as_many_as_its_rate_says_within_its_windows() -> None:
    two = table(
        Window("a", 1200 * S, 0.5, "Gamma", 0.1),
        Window("b", 1800 * S, 0.25, "Weibull", 0.3),
    )
    trace = two.trace(lengths=LENGTHS, seed=1)
    by_client = {name: [a.at_ns for a in trace if a.session == name] for name in "ab"}
    assert {name: len(at) for name, at in by_client.items()} == {"a": 300, "b": 150}
    assert max(by_client["a"]) < 600 * S <= min(by_client["b"])
    assert max(by_client["b"]) < 1200 * S
    assert (np.diff(trace.at_ns) >= 0).all()
    assert trace.metadata()["requests"] == 450


@pytest.mark.parametrize(
    ("pattern", "shape", "cv"),
    [("Gamma", 0.25, 2.0), ("Gamma", 4.0, 0.5), ("Weibull", 1.0, 1.0), ("Weibull", 0.5, 5**0.5)],
)
def test_gaps_have_the_burstiness_of_their_pattern(pattern: str, shape: float, cv: float) -> None:
    trace = table(Window("a", 0, 200.0, pattern, shape)).trace(lengths=LENGTHS, seed=3)
    assert describe(trace)["gap_cv"] == pytest.approx(cv, rel=0.03)


def test_the_same_seed_is_the_same_traffic() -> None:
    one = table(Window("a", 0, 1.0, "Gamma", 0.5))
    first, again, other = (one.trace(lengths=LENGTHS, seed=s) for s in (1, 1, 2))
    assert (first.at_ns == again.at_ns).all()
    assert (first.at_ns != other.at_ns).any()


def test_a_published_hour_has_its_published_rate(traces: Path) -> None:
    statistics = read(traces / "servegen_reason_deepseek-r1_clients_peakhour.csv.gz")
    assert isinstance(statistics, ClientTable)
    trace = statistics.trace(lengths=LENGTHS, seed=0)
    assert describe(trace)["rate_per_s"] == pytest.approx(36.84, rel=0.001)
    assert set(trace.session or ()) == {window.client for window in statistics.windows}
