"""The open loop on a fake clock: everyone once, in order, never held back."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscope.workload.driver import LATENESS_REQUESTS, OpenLoop
from batchscope.workload.trace import NEVER_NS, Arrival, Trace, TraceError


def trace(at_ns: Iterable[int], abort_after_ns: list[int] | None = None) -> Trace:
    instants = np.array(list(at_ns), dtype=np.int64)
    ones = np.ones(len(instants), dtype=np.int64)
    aborts = None if abort_after_ns is None else np.array(abort_after_ns)
    return Trace(instants, ones, ones, abort_after_ns=aborts)


def ordinals(arrivals: list[Arrival]) -> list[int]:
    return [arrival.ordinal for arrival in arrivals]


def test_arrivals_come_due_by_the_clock_of_the_caller() -> None:
    loop = OpenLoop(trace([0, 10, 10, 30]), start_ns=1000)
    assert (loop.next_ns(), loop.due(999)) == (1000, [])
    assert ordinals(loop.due(1000)) == [0]
    assert [a.at_ns for a in loop.due(1029)] == [1010, 1010]
    assert (loop.next_ns(), loop.done) == (1030, False)
    assert ordinals(loop.due(5000)) == [3]
    assert (loop.next_ns(), loop.done, loop.due(9999)) == (None, True, [])


def test_an_engine_that_finishes_nothing_gets_all_of_them_all_the_same() -> None:
    loop = OpenLoop(trace(range(0, 1000, 10)), start_ns=0)
    assert len(loop.due(500)) == 51
    assert len(loop.due(990)) == 49


def test_lateness_is_what_the_poller_added() -> None:
    loop = OpenLoop(trace([0, 10, 20]), start_ns=0)
    assert loop.lateness().p99_ns is None
    loop.due(5)
    loop.due(50)
    late = loop.lateness()
    assert (late.requests, late.mean_ns, late.max_ns) == (3, 25.0, 40)
    assert (late.p50_ns, late.p99_ns) == (30, 40)


def test_lateness_forgets_old_quantiles_and_keeps_the_max() -> None:
    loop = OpenLoop(trace([0]), start_ns=0, laps=LATENESS_REQUESTS + 1)
    loop.due(5)
    while not loop.done:
        loop.due(loop.next_ns() or 0)
    late = loop.lateness()
    assert (late.max_ns, late.p99_ns, late.requests) == (5, 0, LATENESS_REQUESTS + 1)


def test_a_client_that_vanishes_is_told_once_and_the_loop_waits_for_it() -> None:
    loop = OpenLoop(trace([0, 10, 20], [100, NEVER_NS, 5]), start_ns=0)
    loop.due(20)
    assert (loop.exhausted, loop.done, loop.next_ns()) == (True, False, 25)
    assert ordinals(loop.cancelled(24)) == []
    assert ordinals(loop.cancelled(25)) == [2]
    assert ordinals(loop.cancelled(1000)) == [0]
    assert (loop.cancelled(1000), loop.done) == ([], True)


def test_laps_keep_the_rate_and_give_new_ordinals() -> None:
    loop = OpenLoop(trace([0, 10, 40]), start_ns=0, laps=2)
    arrivals = loop.due(10**9)
    assert [a.at_ns for a in arrivals] == [0, 10, 40, 60, 70, 100]
    assert ordinals(arrivals) == [0, 1, 2, 3, 4, 5]
    assert loop.done


def test_endless_laps_are_handed_out_only_as_they_come_due() -> None:
    loop = OpenLoop(trace([0, 10]), start_ns=0, laps=None)
    assert len(loop.due(1005)) == 101
    assert (loop.exhausted, loop.next_ns()) == (False, 1010)


def test_a_trace_of_one_instant_repeats_by_the_second() -> None:
    loop = OpenLoop(trace([0, 0]), start_ns=0, laps=None)
    assert len(loop.due(10**9)) == 4


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(TraceError):
        OpenLoop(trace([]), start_ns=0)


@given(
    gaps=st.lists(st.integers(0, 50), min_size=1, max_size=30),
    polls=st.lists(st.integers(-20, 60), max_size=60),
    laps=st.integers(1, 3),
)
def test_everyone_is_handed_over_exactly_once_and_never_early(
    gaps: list[int], polls: list[int], laps: int
) -> None:
    at_ns = np.cumsum(gaps) - gaps[0]
    loop = OpenLoop(trace(at_ns.tolist()), start_ns=7, laps=laps)
    now = 0
    seen: list[Arrival] = []
    for step in [*polls, 10**12]:
        now += step
        arrivals = loop.due(now)
        assert all(a.at_ns <= now for a in arrivals)
        seen += arrivals
    assert ordinals(seen) == list(range(len(gaps) * laps))
    assert [a.at_ns for a in seen] == sorted(a.at_ns for a in seen)
    assert loop.done
