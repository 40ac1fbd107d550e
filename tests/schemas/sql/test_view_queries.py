"""The questions that the dashboard's views ask: rows in, CSV out, each answer checked by hand once.

`BATCHSCOPE_GOLDEN=write pytest ...` rewrites the files; read the diff before committing it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.schemas.sql.world import BIG_RING, MS, T0, TABLES, ask, at, database, iteration

GOLDEN = Path(__file__).with_name("golden")
RANGE = {"engine": "a", "from_ns": at(50), "to_ns": at(350)}
CASES: dict[str, dict[str, Any]] = {
    "engine_choices": {},
    "now": RANGE,
    "timeline": {**RANGE, "points": 3},
    "latency": RANGE,
    "tbt_histogram": RANGE,
    "deferrals_by_reason": {**RANGE, "points": 3},
    "admission_stops": {**RANGE, "points": 3},
    "goodput": RANGE,
    "iteration_rows": {**RANGE, "at_ns": at(150), "rows": 3},
    "iteration_members": {"ring_id": BIG_RING, "iteration_id": 5},
    "membership": {**RANGE, "from_ns": at(110), "rows": 2},
    "preemption_marks": RANGE,
    "slowest_iterations": {**RANGE, "rows": 2},
    "marks_and_losses": RANGE,
    "trust": RANGE,
    "slo_in_force": {},
}
VOLATILE = {"server_unix_ns"}


def as_csv(table: pa.Table) -> str:
    """Header name:type, instants as ms after T0, NULL as an empty field."""
    names = [name for name in table.column_names if name not in VOLATILE]
    header = ",".join(f"{name}:{table.schema.field(name).type}" for name in names)
    rows = [",".join(_text(name, row[name]) for name in names) for row in table.to_pylist()]
    return "\n".join([header, *rows]) + "\n"


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if name.endswith("unix_ns") and isinstance(value, int):
        return f"{(value - T0) / 1e6:g}ms"
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace(",", ";")


@pytest.fixture(scope="module")
def world() -> Iterator[duckdb.DuckDBPyConnection]:
    with database() as db:
        yield db


@pytest.mark.parametrize("name", CASES)
def test_answer_is_the_one_checked_by_hand(world: duckdb.DuckDBPyConnection, name: str) -> None:
    path = GOLDEN / f"{name}.csv"
    answer = as_csv(ask(world, name, **CASES[name]))
    if os.environ.get("BATCHSCOPE_GOLDEN") == "write":
        path.write_text(answer, encoding="utf-8")
    assert answer == path.read_text(encoding="utf-8")


def random_tokens(seed: int, *, over_ms: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Iterations that many members share, and every single gap they stand for."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    gaps: list[int] = []
    for number in range(1, 400):
        took, members = rng.randint(1, 900), rng.randint(0, 30)
        when = number * over_ms / 400
        rows.append(iteration(number, when, took / 10, decode_gap_members=members))
        gaps += [took * 100_000] * members
    return rows, sorted(gaps)


def nearest_rank(values: list[int], percent: int) -> int:
    """The smallest value that at least `percent` of all values don't exceed."""
    return values[max(0, -(-len(values) * percent // 100) - 1)]


@pytest.mark.parametrize("seed", range(5))
def test_short_ranges_have_exact_token_weighted_quantiles(seed: int) -> None:
    rows, gaps = random_tokens(seed, over_ms=60_000)
    tables = {"engines": TABLES["engines"], "iterations": rows}
    with database(tables) as db:
        answer = ask(db, "latency", engine="a", from_ns=T0, to_ns=at(60_001)).to_pylist()
    tbt = next(row for row in answer if row["measure"] == "tbt")
    assert tbt["exact"]
    assert tbt["samples"] == len(gaps)
    assert (tbt["p50_ns"], tbt["p99_ns"]) == (nearest_rank(gaps, 50), nearest_rank(gaps, 99))


def test_long_ranges_say_that_they_are_rounded_and_stay_within_two_percent() -> None:
    rows, gaps = random_tokens(7, over_ms=3_600_000)
    with database({"engines": TABLES["engines"], "iterations": rows}) as db:
        answer = ask(db, "latency", engine="a", from_ns=T0, to_ns=at(3_600_001)).to_pylist()
    tbt = next(row for row in answer if row["measure"] == "tbt")
    assert not tbt["exact"]
    assert tbt["p99_ns"] == pytest.approx(nearest_rank(gaps, 99), rel=0.011)


def test_a_timeline_never_has_more_points_than_it_was_asked_for() -> None:
    rows, _ = random_tokens(1, over_ms=60_000)
    with database({"engines": TABLES["engines"], "iterations": rows}) as db:
        answer = ask(db, "timeline", engine="a", from_ns=T0, to_ns=at(60_000), points=50)
    assert answer.num_rows <= 51
    assert sum(row["iterations"] for row in answer.to_pylist()) == 399


@pytest.mark.parametrize("name", [name for name, params in CASES.items() if "engine" in params])
def test_an_engine_that_nobody_knows_has_no_figures_and_no_zeros(
    world: duckdb.DuckDBPyConnection, name: str
) -> None:
    rows = ask(world, name, **{**CASES[name], "engine": "nobody"}).to_pylist()
    invented = {"marks_and_losses", "now", "trust"}
    assert rows == [] or name in invented
    if name == "now":
        assert rows[0]["iterations_per_s"] is None
        assert rows[0]["running"] is None


@pytest.mark.parametrize("name", [name for name, params in CASES.items() if "points" in params])
def test_no_points_at_all_is_one_bucket(world: duckdb.DuckDBPyConnection, name: str) -> None:
    assert ask(world, name, **{**CASES[name], "points": 0}).num_rows >= 1


@pytest.mark.parametrize("name", [name for name, params in CASES.items() if "rows" in params])
def test_negative_row_limits_are_none(world: duckdb.DuckDBPyConnection, name: str) -> None:
    assert ask(world, name, **{**CASES[name], "rows": -1}).num_rows == 0


def test_an_idle_engine_decays_to_idle_though_its_last_decision_had_company() -> None:
    quiet = {**TABLES, "requests_open": [], "runs_open": [], "iterations_open": []}
    with database(quiet) as db:
        now = ask(db, "now", **RANGE).to_pylist()[0]
    assert (now["running"], now["waiting"]) == (0, 0)
    assert now["kv_used_blocks"] is None


def test_a_window_from_before_the_engine_came_has_no_rates(
    world: duckdb.DuckDBPyConnection,
) -> None:
    before = {"engine": "a", "from_ns": at(-20_000), "to_ns": at(-15_000)}
    (row,) = ask(world, "now", **before).to_pylist()
    assert (row["window_s"], row["iterations_per_s"], row["iterations"]) == (None, None, 0)


def test_a_goodbye_that_was_asked_for_is_no_notice_but_one_after_faults_is() -> None:
    said = TABLES["notices"][-1]
    with database({**TABLES, "notices": [said]}) as db:
        assert ask(db, "trust", **RANGE).to_pylist()[0]["notices"] == 0
    with database({**TABLES, "notices": [said | {"text": "5 faults in a row at step"}]}) as db:
        assert ask(db, "trust", **RANGE).to_pylist()[0]["notices"] == 1


@pytest.mark.parametrize("step_ms", [-300_000, -4_000, 4_000, 300_000])
def test_a_step_of_the_wall_clock_bends_no_rate(step_ms: int) -> None:
    rows = [
        iteration(n, n * 100 + step_ms * (n > 500), 100, completed_at_ns=n * 100 * MS)
        for n in range(1, 601)
    ]
    to_ns = at(60_000 + step_ms)
    engines = [TABLES["engines"][0] | {"attached_unix_ns": at(-(10**6))}]
    with database({"engines": engines, "iterations": rows}) as db:
        (now,) = ask(db, "now", engine="a", from_ns=to_ns - 30_000 * MS, to_ns=to_ns).to_pylist()
    assert (now["window_s"], now["iterations_per_s"]) == (30, 10)
