"""The Now board made from real answers, and its judgement of alive, idle, stalled and gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.schemas.sql.world import ask, at, database

from batchscope.dashboard.figures import first
from batchscope.dashboard.figures.board import board, headline, liveness, usefulness
from batchscope.dashboard.figures.sparks import Grid, unseen
from batchscope.dashboard.figures.tiles import Glance, trust

FROM, TO = at(50), at(350)
SCOPE = {"engine": "a", "from_ns": FROM, "to_ns": TO}
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def glance() -> Glance:
    names = ("latency", "goodput", "deferrals_by_reason", "admission_stops", "trust")
    with database() as db:
        answers = {name: ask(db, name, **SCOPE) for name in names}
        for name in ("timeline", "latency", "goodput"):
            answers[f"{name}_sparks"] = ask(db, name, **SCOPE, points=3)
        answers["slo_in_force"] = ask(db, "slo_in_force")
        engine = ask(db, "engine_choices").to_pylist()[0]
        now = first(ask(db, "now", **SCOPE))
    return Glance(engine, now, answers, Grid(FROM, TO, 3), slots=2)


@pytest.fixture(scope="module")
def drawn(glance: Glance) -> dict[str, Any]:
    return board(glance)


def tile(drawn: dict[str, Any], label: str) -> dict[str, Any]:
    tiles = [tile for group in drawn["groups"] for tile in group["tiles"]]
    return next(tile for tile in tiles if tile.get("label") == label)


def read(drawn: dict[str, Any], label: str) -> list[str]:
    return [f"{f['value']} {f['unit']}" for f in tile(drawn, label)["figures"]]


def test_figures_are_those_of_the_queries_with_units(drawn: dict[str, Any]) -> None:
    assert read(drawn, "Iterations") == ["16.7 /s"]
    assert read(drawn, "Tokens scheduled") == ["3,410 /s", "23.3 /s"]
    assert read(drawn, "Interval") == ["30.0 ms", "40.0 ms"]
    assert read(drawn, "Time between tokens") == ["20.0 ms", "170 ms"]
    assert read(drawn, "KV blocks used") == ["40 % "]
    assert read(drawn, "Observer") == ["12.0 µs p50"]


def test_the_decode_half_of_a_split_does_not_call_its_ttft_the_clients(glance: Glance) -> None:
    about = {role: _ttft_about(glance, role) for role in ("both", "prefill", "decode")}
    assert about["both"] == about["prefill"] == "from a request's arrival"
    assert about["decode"] == "from a request's arrival here, after its prefill elsewhere"


def _ttft_about(glance: Glance, role: str) -> str:
    half = replace(glance, engine=glance.engine | {"role": role})
    return str(tile(board(half), "Time to first token")["about"])


def test_goodput_stands_beside_throughput(drawn: dict[str, Any]) -> None:
    assert read(drawn, "Requests that ended") == ["3.3 /s", "6.7 /s"]
    assert tile(drawn, "Requests that ended")["note"] == "1 aborted"
    assert tile(drawn, "Output tokens of ended requests")["note"] == "50 % on time"


def test_the_heading_names_the_terms_of_the_newest_slo(drawn: dict[str, Any]) -> None:
    titles = [group["title"] for group in drawn["groups"]]
    assert any(title.endswith("SLO: TTFT ≤ 2 s, TBT p99 ≤ 200 ms") for title in titles)
    assert usefulness({}).endswith("SLO: none set")


@pytest.mark.parametrize(
    ("ratio", "tone", "words"),
    [
        (0.004, "", "0.4 % of the interval"),
        (0.014, "warn", "1.4 %, above 1 % of the interval"),
    ],
)
def test_a_dear_observer_is_warned_of_in_words(ratio: float, tone: str, words: str) -> None:
    with database() as db:
        row = first(ask(db, "trust", **SCOPE))
    observer = trust({**row, "observer_ratio": ratio})[-1]
    assert observer["tone"] == tone
    assert observer["note"] == f"p99 12.0 µs · {words}"


def test_who_is_left_out_says_what_each_figure_is(drawn: dict[str, Any]) -> None:
    rows = tile(drawn, "Requests left out of a decision")["rows"]
    budget = next(row for row in rows if row["label"] == "token budget")
    assert budget["text"] == "0.6 on average · 20 % of decisions"


def test_slots_are_shown_against_their_limit(drawn: dict[str, Any]) -> None:
    assert read(drawn, "Running") == ["1 of 2 slots"]
    assert tile(drawn, "Running")["bar"][0]["ratio"] == 0.5


def test_violations_and_losses_are_warned_of(drawn: dict[str, Any]) -> None:
    assert tile(drawn, "Audit")["tone"] == "warn"
    assert tile(drawn, "Audit")["note"] == "kv: used 11 of 10"
    assert tile(drawn, "Lost records")["tone"] == "warn"
    assert "a seam is missing" in tile(drawn, "Lost records")["note"]


def test_an_engine_without_any_figure_shows_dashes_and_no_zeros() -> None:
    with database() as db:
        scope = {**SCOPE, "engine": "nobody"}
        names = ("latency", "goodput", "deferrals_by_reason", "admission_stops", "trust")
        answers = {name: ask(db, name, **scope) for name in names}
        for name in ("timeline", "latency", "goodput"):
            answers[f"{name}_sparks"] = ask(db, name, **scope, points=3)
        answers["slo_in_force"] = ask(db, "slo_in_force")
        engine = ask(db, "engine_choices").to_pylist()[0]
        now = first(ask(db, "now", **scope))
    drawn = board(Glance(engine, now, answers, Grid(FROM, TO, 3), slots=None))
    for label in ("Iterations", "Interval", "Running", "KV blocks used", "Audit", "Observer"):
        assert read(drawn, label)[0].startswith("–")  # noqa: RUF001


def engine(state: str = "live", *, quiet_s: float | None = 0.1) -> dict[str, Any]:
    last = None if quiet_s is None else TO - int(quiet_s * SECOND)
    return {"state": state, "last_iteration_unix_ns": last, "server_unix_ns": TO}


@pytest.mark.parametrize(
    ("row", "now", "tone"),
    [
        (engine(), {"waiting": 5}, "live"),
        (engine(quiet_s=60), {"waiting": 0, "in_flight": 0}, "idle"),
        (engine(quiet_s=60), {"waiting": 5, "in_flight": 0}, "stalled"),
        (engine(quiet_s=60), {"waiting": 0, "in_flight": 1}, "stalled"),
        (engine(quiet_s=None), {"waiting": None}, "idle"),
        (engine("dead", quiet_s=60), {}, "dead"),
        (engine("closed", quiet_s=60), {}, "closed"),
    ],
)
def test_liveness_tells_idle_from_wedged(
    row: dict[str, Any], now: dict[str, Any], tone: str
) -> None:
    assert liveness(row, now)[0] == tone


@pytest.mark.parametrize(
    ("stops", "sentence"),
    [
        ({}, "No decision in the last minute"),
        ({None: 99, "kv_blocks": 1}, "Nothing holds admission back"),
        ({None: 10, "max_requests": 90}, "Held by request slots in 90 % of decisions"),
        ({"kv_blocks": 60, "token_budget": 40}, "Held by KV blocks in 60 % of decisions"),
    ],
)
def test_the_headline_names_the_bound(stops: dict[str | None, int], sentence: str) -> None:
    assert headline(stops) == sentence


def test_sparklines_are_zero_when_idle_and_unknown_when_not_seen() -> None:
    losses = [{"kind": "loss", "unix_ns": 210, "until_unix_ns": 290}]
    grid = Grid(0, 500, 5, unseen(losses, attached_ns=90, to_ns=500))
    rows = [{"unix_ns": 330, "iterations": 2}]
    rates = grid.rate(rows, "iterations")
    assert rates == [None, 0.0, None, 2e9 / 100, 0.0]
    assert grid.plain(rows, "iterations") == [None, None, None, 2, None]
