"""The fold against a plain one, record by record, and against itself, cut anywhere."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.exporter.naive_fold import NaiveFold
from tests.exporter.schedules import Engine
from tests.support.records import Script

from batchscope.exporter.fold import RingFold
from batchscope.exporter.rows import Rows
from batchscope.schemas.reasons import DeferralReason, words
from batchscope.schemas.records import NULL64
from batchscope.schemas.slo import Slo

Plain = dict[str, list[dict[str, Any]]]
SLO = Slo("x", (("tbt_p90", 40), ("ttft", 200)), 1)
CALM = frozenset({"preempt", "abort", "absent"})
ROUGH = CALM | {
    *("spec", "blocked", "idle", "empty", "dummy", "twice", "clock", "fails", "double"),
    "disorder",
}
BROKEN = ROUGH | {"segments", "late_live", "loss", "hidden", "bye", "dropped", "back", "vague"}
FEATURES = [frozenset(), CALM, ROUGH, BROKEN, BROKEN | {"breaks"}]


def plain(rows: Rows) -> Plain:
    """Columns as lists of dicts, NULL as None."""
    out: Plain = {}
    for table, columns in rows.items():
        names = list(columns)
        values = [[cell(v) for v in columns[name]] for name in names]
        out[table] = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return {table: found for table, found in out.items() if found}


def cell(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.integer):
        return None if value == NULL64 else int(value)
    return value


def _texts(row: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((k, str(v)) for k, v in row.items())


def same_rows(fast: Plain, slow: Plain, table: str) -> None:
    wanted = sorted(slow.get(table, []), key=_texts)
    names = wanted[0].keys() if wanted else ()
    found = sorted(({n: row[n] for n in names} for row in fast.get(table, [])), key=_texts)
    assert found == wanted, table


def script_of(seed: int, depth: int, features: frozenset[str], steps: int) -> Script:
    return Engine(seed, depth=depth, features=features).run(steps)


def check(script: Script, slo: Slo | None = SLO) -> RingFold:
    fold = RingFold(script.hello, script.ring_id, slo=slo)
    fast = plain(fold.fold(script.chunk()))
    naive = NaiveFold(script.hello, slo)
    slow = naive.feed(script.bodies)
    for table in (
        "iterations",
        "runs",
        "gaps",
        "requests",
        "waits",
        "blocked",
        "deferrals",
        "preemptions",
        "losses",
    ):
        same_rows(fast, slow, table)
    counted = {
        k: n
        for k, n in fold.totals.counters.items()
        if k[0] not in ("audit_checks", "audit_violations")
    }
    assert counted == {k: n for k, n in naive.counters.items() if n}
    left_out = {row["serial"]: row["deferrals"] for row in _open(fold)}
    assert left_out == naive.open_deferrals()
    return fold


def _open(fold: RingFold) -> list[dict[str, Any]]:
    return plain({"requests": fold.open_rows()["requests_open"]}).get("requests", [])


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from((1, 1, 2, 3)),
    features=st.sampled_from(FEATURES),
    steps=st.integers(1, 80),
)
@example(seed=275, depth=3, features=BROKEN, steps=80)
@example(seed=146, depth=3, features=BROKEN, steps=80)
@settings(max_examples=60, deadline=None)
def test_the_fold_says_what_a_plain_one_says(
    seed: int, depth: int, features: frozenset[str], steps: int
) -> None:
    check(script_of(seed, depth, features, steps))


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from((1, 2, 3)),
    features=st.sampled_from(FEATURES),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_fold_of_parts_is_the_fold_of_the_whole(
    seed: int, depth: int, features: frozenset[str], data: st.DataObject
) -> None:
    script = script_of(seed, depth, features, 60)
    cuts = data.draw(st.lists(st.integers(0, len(script)), max_size=6))
    whole = RingFold(script.hello, script.ring_id, slo=SLO)
    parts = RingFold(script.hello, script.ring_id, slo=SLO)
    wanted = plain(whole.fold(script.chunk()))
    found: Plain = {}
    for chunk in script.chunks(*cuts):
        for table, rows in plain(parts.fold(chunk)).items():
            found.setdefault(table, []).extend(rows)
        blob = parts.dump()
        parts = RingFold.load(blob)
        assert parts.dump() == blob
    assert found == wanted
    assert parts.dump() == whole.dump()
    assert plain(parts.open_rows()) == plain(whole.open_rows())


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from((1, 2, 3)),
    features=st.sampled_from((frozenset(), CALM, ROUGH)),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_deferred_seconds_are_the_waits_added_up_once_all_have_ended(
    seed: int, depth: int, features: frozenset[str], data: st.DataObject
) -> None:
    engine = Engine(seed, depth=depth, features=features)
    script = engine.run(60)
    for job in list(engine.jobs.values()):
        engine.end(job, "abort")
    script.scheduled(at=engine.tick(10**6))
    cuts = data.draw(st.lists(st.integers(0, len(script)), max_size=4))
    fold, waited = RingFold(script.hello, script.ring_id, slo=None), Counter[str]()
    for chunk in script.chunks(*cuts):
        for row in plain(fold.fold(chunk)).get("waits", []):
            waited[str(words(DeferralReason)[row["reason"]])] += row["wait_ns"]
    counters = fold.totals.counters
    counted = {k[1][0]: n for k, n in counters.items() if k[0] == "deferred_seconds" and n}
    assert counted == {reason: n for reason, n in waited.items() if n}


@given(
    seed=st.integers(0, 2**32), depth=st.sampled_from((1, 2, 3)), features=st.sampled_from(FEATURES)
)
@settings(max_examples=40, deadline=None)
def test_an_end_without_a_goodbye_is_one_at_the_last_instant(
    seed: int, depth: int, features: frozenset[str]
) -> None:
    script = script_of(seed, depth, features, 40)
    silent = RingFold(script.hello, script.ring_id, slo=SLO)
    said = RingFold(script.hello, script.ring_id, slo=SLO)
    silent.fold(script.chunk())
    said.fold(script.chunk())
    n = len(script)
    at = said._state.at
    assert plain(silent.end()) == plain(said.fold(script.bye(at=at).chunks(n)[1]))
    left, wanted = silent.open_rows(), said.open_rows()
    for table in ("runs_open", "requests_open", "iterations_open"):
        assert plain({table: left[table]}) == plain({table: wanted[table]}), table
    finished = ("requests_finished", ("unknown",))
    assert silent.totals.counters.get(finished) == said.totals.counters.get(finished)
    assert silent.end() == {}
