"""The fold against a plain one, record by record, and against itself, cut anywhere."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporter.naive_fold import NaiveFold
from tests.exporter.schedules import Engine

from batchscope.exporter.fold import RingFold
from batchscope.schemas.records import NULL64
from batchscope.schemas.slo import Slo

SLO = Slo("x", (("tbt_p90", 40), ("ttft", 200)), 1)
CALM = frozenset({"preempt", "abort", "absent"})
ROUGH = CALM | {
    *("spec", "blocked", "idle", "empty", "dummy", "twice", "clock", "fails", "double"),
    "disorder",
}
BROKEN = ROUGH | {"segments", "late_live", "loss", "hidden", "bye", "dropped", "back"}
FEATURES = [frozenset(), CALM, ROUGH, BROKEN]


def plain(rows):
    """Columns as lists of dicts, NULL as None."""
    out = {}
    for table, columns in rows.items():
        names = list(columns)
        values = [[cell(v) for v in columns[name]] for name in names]
        out[table] = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return {table: found for table, found in out.items() if found}


def cell(value):
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.integer):
        return None if value == NULL64 else int(value)
    return value


def same_rows(fast, slow, table):
    key = lambda row: sorted((k, str(v)) for k, v in row.items())  # noqa: E731
    wanted = sorted(slow.get(table, []), key=key)
    names = wanted[0].keys() if wanted else ()
    found = sorted(({n: row[n] for n in names} for row in fast.get(table, [])), key=key)
    assert found == wanted, table


def script_of(seed, depth, features, steps):
    return Engine(seed, depth=depth, features=features).run(steps)


def check(script, slo=SLO):
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
    return fold


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from((1, 1, 2, 3)),
    features=st.sampled_from(FEATURES),
    steps=st.integers(1, 80),
)
@settings(max_examples=60, deadline=None)
def test_the_fold_says_what_a_plain_one_says(seed, depth, features, steps):
    check(script_of(seed, depth, features, steps))


@given(
    seed=st.integers(0, 2**32),
    depth=st.sampled_from((1, 2, 3)),
    features=st.sampled_from(FEATURES),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_fold_of_parts_is_the_fold_of_the_whole(seed, depth, features, data):
    script = script_of(seed, depth, features, 60)
    cuts = data.draw(st.lists(st.integers(0, len(script)), max_size=6))
    whole = RingFold(script.hello, script.ring_id, slo=SLO)
    parts = RingFold(script.hello, script.ring_id, slo=SLO)
    wanted = plain(whole.fold(script.chunk()))
    found: dict = {}
    for chunk in script.chunks(*cuts):
        for table, rows in plain(parts.fold(chunk)).items():
            found.setdefault(table, []).extend(rows)
        blob = parts.dump()
        parts = RingFold.load(blob)
        assert parts.dump() == blob
    assert found == wanted
    assert parts.dump() == whole.dump()
    assert plain(parts.open_rows()) == plain(whole.open_rows())
