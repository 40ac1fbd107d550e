"""The fold of a front end's ring: what each stream was handed, when, how long after the core."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.records import UNIX_NS, Script

from batchscope.exporter.fold import RingFold
from batchscope.exporter.rows import to_arrow
from batchscope.schemas.records import DELIVERED, NO_MEMBERS

Row = dict[str, Any]
HOUR_NS = 3_600_000_000_000


def script(**hello: Any) -> Script:
    return Script(role="frontend", dp_rank=None, **hello)


def fold_of(of: Script) -> RingFold:
    return RingFold(of.hello, of.ring_id, slo=None)


def told(rows: Any, table: str = "deliveries") -> list[Row]:
    return to_arrow(table, rows[table]).to_pylist() if table in rows else []


def ended(of: Script) -> dict[int, Row]:
    """Serial -> its row, of those that left."""
    return {row["serial"]: row for row in told(fold_of(of).fold(of.chunk()))}


def test_a_stream_is_measured_from_its_arrival_at_the_front_end() -> None:
    s = script().arrived(1, prompt=5, at=10)
    s.delivered(at=100, ready=90, tokens={1: 1}).delivered(at=150, ready=120, tokens={1: 2})
    s.delivered(at=190, ready=150, tokens={1: 1}).finished(1, at=190, output=4, reason="length")
    row = ended(s)[1]
    assert (row["arrived_at_ns"], row["first_at_ns"], row["last_at_ns"]) == (10, 100, 190)
    assert (row["ttft_ns"], row["e2e_ns"], row["gap_max_ns"]) == (90, 180, 50)
    assert (row["delivered_tokens"], row["deliveries"], row["tpot_ns"]) == (4, 3, 30)
    assert (row["lag_first_ns"], row["lag_mean_ns"], row["lag_max_ns"]) == (10, 26, 40)
    assert (row["arrived_unix_ns"], row["unix_ns"]) == (UNIX_NS + 10, UNIX_NS + 190)
    assert (row["finish_reason"], row["broken"]) == ("length", False)


def test_one_reply_at_the_end_has_no_gap_and_no_time_per_token() -> None:
    s = script().arrived(1, prompt=5, at=0).delivered(at=90, ready=80, tokens={1: 12})
    row = ended(s.finished(1, at=90, output=12))[1]
    assert (row["ttft_ns"], row["e2e_ns"], row["deliveries"]) == (90, 90, 1)
    assert row["gap_max_ns"] is row["tpot_ns"] is None


@pytest.mark.parametrize("ready", [None, 200, -HOUR_NS])
def test_a_core_without_a_stamp_or_on_another_machines_clock_has_no_lag(ready: int | None) -> None:
    s = script().arrived(1, prompt=5, at=0)
    for at in (100, 200):
        s.add(DELIVERED, at_ns=at, ready_at_ns=ready, tails={"tokens": [(1, 1)]})
    row = ended(s.finished(1, at=200, output=2))[1]
    known = (row["lag_first_ns"], row["lag_mean_ns"], row["lag_max_ns"])
    assert known == ((None, 0, 0) if ready == 200 else (None, None, None))
    assert row["ttft_ns"] == 100


def test_a_stream_that_was_here_before_has_no_ttft_but_all_of_its_tokens() -> None:
    s = script().live(1, prompt=5, at=50, output=7)
    s.delivered(at=100, ready=90, tokens={1: 1}).delivered(at=130, ready=120, tokens={1: 1})
    row = ended(s.finished(1, at=130, output=9))[1]
    assert (row["delivered_tokens"], row["broken"]) == (9, True)
    assert row["arrived_at_ns"] is row["ttft_ns"] is row["first_at_ns"] is row["gap_max_ns"] is None


def test_tokens_of_who_is_not_announced_yet_are_in_its_announcement() -> None:
    s = script().delivered(at=40, ready=30, tokens={1: 1}).live(1, prompt=5, at=50, output=1)
    s.delivered(at=60, ready=50, tokens={1: 1})
    assert ended(s.finished(1, at=60, output=2))[1]["delivered_tokens"] == 2


def test_who_lives_is_in_the_open_rows() -> None:
    s = script().arrived(1, prompt=5, at=0).delivered(at=90, ready=80, tokens={1: 1})
    fold = fold_of(s)
    assert told(fold.fold(s.chunk())) == []
    (row,) = told(fold.open_rows(), "deliveries_open")
    assert (row["ttft_ns"], row["finished_at_ns"], row["finish_reason"]) == (90, None, None)
    assert row["unix_ns"] == UNIX_NS + 90


def test_a_goodbye_and_a_death_end_everyone_as_unknown() -> None:
    s = script().arrived(1, prompt=5, at=0).delivered(at=90, ready=80, tokens={1: 1})
    dead = fold_of(s)
    dead.fold(s.chunk())
    (died,) = told(dead.end())
    assert told(dead.end()) == told(dead.open_rows(), "deliveries_open") == []
    (left,) = ended(s.bye(at=95)).values()
    for row, at in ((died, 90), (left, 95)):
        assert (row["finish_reason"], row["broken"], row["finished_at_ns"]) == ("unknown", True, at)
        assert row["ttft_ns"] == 90


def test_across_a_loss_gaps_are_unknown_and_what_came_first_stays() -> None:
    s = script().arrived(1, prompt=5, at=0).arrived(2, prompt=5, at=0)
    s.delivered(at=50, ready=40, tokens={1: 1}).loss(records=3, iterations=None)
    s.delivered(at=500, ready=400, tokens={1: 1, 2: 1})
    rows = ended(s.finished(1, at=500, output=5).finished(2, at=500, output=5))
    assert rows[1]["ttft_ns"] == 50
    assert rows[2]["ttft_ns"] is rows[1]["gap_max_ns"] is rows[1]["lag_max_ns"] is None
    assert [row["broken"] for row in rows.values()] == [True, True]


def test_who_is_not_heard_of_between_two_losses_has_left() -> None:
    s = script().arrived(1, prompt=5, at=0).arrived(2, prompt=5, at=0)
    s.loss(records=3, iterations=None).delivered(at=50, ready=40, tokens={2: 1})
    (gone,) = ended(s.loss(records=3, iterations=None)).values()
    assert (gone["serial"], gone["finish_reason"]) == (1, "unknown")


def test_where_requests_are_left_out_nothing_is_said_of_them() -> None:
    s = script().arrived(1, prompt=5, at=0).delivered(at=50, ready=40, tokens={1: 1})
    s.add(DELIVERED, flags=NO_MEMBERS, at_ns=60, ready_at_ns=50, n_tokens=1)
    row = ended(s.finished(1, at=60, output=2))[1]
    assert (row["broken"], row["gap_max_ns"], row["e2e_ns"]) == (True, None, None)
    assert row["ttft_ns"] == 50


def test_where_requests_are_left_out_the_next_token_of_one_is_not_its_first() -> None:
    s = script().arrived(1, prompt=5, at=0)
    s.add(DELIVERED, flags=NO_MEMBERS, at_ns=60, ready_at_ns=50, n_tokens=1)
    s.arrived(2, prompt=5, at=70).delivered(at=100, ready=90, tokens={1: 1, 2: 1})
    rows = ended(s.finished(1, at=100, output=2).finished(2, at=100, output=1))
    assert (rows[1]["broken"], rows[1]["ttft_ns"], rows[1]["e2e_ns"]) == (True, None, 100)
    assert (rows[2]["broken"], rows[2]["ttft_ns"]) == (False, 30)


def test_a_front_end_that_counts_otherwise_breaks_a_law() -> None:
    s = script().arrived(1, prompt=5, at=0).delivered(at=50, ready=40, tokens={1: 1})
    fold = fold_of(s)
    fold.fold(s.finished(1, at=60, output=2).chunk())
    assert fold.totals.counters["audit_violations", ("tokens_emitted",)] == 1


def some(rng: random.Random) -> Script:
    """A random life of a front end: who comes, deliveries with names and without, ends, losses."""
    s, live, serial, now = script(), dict[int, int](), 0, 0
    for _ in range(rng.randrange(5, 40)):
        now += rng.randrange(1, 50)
        what = rng.random()
        if what < 0.25:
            serial += 1
            live[serial] = 0
            s.arrived(serial, prompt=5, at=now)
        elif what < 0.3:
            serial += 1
            live[serial] = rng.randrange(3)
            s.live(serial, prompt=5, at=now, output=live[serial])
        elif what < 0.4:
            s.add(DELIVERED, flags=NO_MEMBERS, at_ns=now, ready_at_ns=now - 1, n_tokens=1)
        elif what < 0.8 and live:
            given = {n: rng.randrange(1, 4) for n in sorted(live) if rng.random() < 0.7}
            live |= {n: live[n] + tokens for n, tokens in given.items()}
            s.delivered(at=now, ready=now - rng.randrange(0, 9), tokens=given)
        elif what < 0.92 and live:
            left = rng.choice(sorted(live))
            s.finished(left, at=now, output=live.pop(left))
        elif what < 0.96:
            s.loss(records=2, iterations=None)
        else:
            s.bye(at=now)
            live.clear()
    return s


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 40), max_size=4))
def test_wherever_it_is_cut_rows_and_state_are_the_same(seed: int, cuts: list[int]) -> None:
    s = some(random.Random(seed))
    whole, parts = fold_of(s), fold_of(s)
    rows = told(whole.fold(s.chunk()))
    found: list[Row] = []
    for chunk in s.chunks(*(cut for cut in set(cuts) if cut < len(s))):
        found += told(parts.fold(chunk))
        parts = RingFold.load(parts.dump())
    assert found == rows
    assert told(parts.open_rows(), "deliveries_open") == told(whole.open_rows(), "deliveries_open")
    assert parts.dump() == whole.dump()
