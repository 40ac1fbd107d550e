"""`batchscope replay` and `export`: against the bundled engine, its server, and a real exporter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.commands import DEADLINE_S
from tests.support.engine_server import serving
from tests.support.served import Served, until

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.virtual import Simulation
from batchscope.exporter import facts
from batchscope.exporter.cli import bundled, export, main
from batchscope.exporter.cli.played import answered, report
from batchscope.exporter.cli.tabled import lines
from batchscope.exporter.errors import ConfigError
from batchscope.exporter.store import Commit, Store
from batchscope.workload.judged import Terms
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.read import read_trace
from batchscope.workload.replay import Played
from batchscope.workload.trace import Arrival, Trace
from batchscope.workload.traffic import Wish, traffic
from batchscope.workload.written import write

S, MS = 10**9, 10**6
EPOCH = 1_700_000_000 * S
ENGINE = ("--engine", "cost")
EASY = "ttft<=60s,tbt_p99<=60s"
SMALL = ("--prompt-tokens", "16:64", "--output-tokens", "2:8", "--seed", "3")
LAW = ("poisson", "--rate", "20", "--requests", "20", *SMALL)


def told(capsys: Any, *words: Any, code: int = 0) -> Any:
    """The JSON that a command prints."""
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refused(capsys: Any, *words: Any, code: int = 2) -> str:
    """The one sentence that a command ends with."""
    assert main([*map(str, words)]) == code
    said = capsys.readouterr()
    (line,) = said.err.strip().splitlines()
    assert said.out == ""
    return str(line)


def recorded(rings: Path, **more: str) -> dict[str, str]:
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(rings), "BATCHSCOPE_OVERHEAD": "0"}
    return env | {"BATCHSCOPE_RING_BYTES": "1048576", **more}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: Any) -> Any:
    """(exporter, URL of the engine): an observed engine behind its server, and who observes it."""
    with Served(tmp_path_factory.mktemp("lab")) as served:
        env = recorded(served.rings, BATCHSCOPE_ENGINE="lab")
        with serving(attach=lambda engine: mini.attach(engine, env)) as (url, _):
            yield served, url


def here(served: Any) -> str:
    return str(served.http.base_url).rstrip("/")


def test_client_and_engine_stand_side_by_side_and_the_trace_comes_back(
    lab: Any, capsys: Any, tmp_path: Path
) -> None:
    served, url = lab
    began_s, out = time.time(), tmp_path / "r.parquet"
    posted = ("--post", "--exporter", here(served), "--name", "first")
    seen = told(capsys, "replay", url, *LAW, "--slo", EASY, *posted, "-o", out)
    wanted = traffic(
        Wish("poisson", 20.0, requests=20, prompt_tokens="16:64", output_tokens="2:8", seed=3)
    )

    assert seen["statuses"] == {"ok": 20}
    assert seen["goodput"]["attainment"] == 1.0
    assert seen["tokens"]["prompt_told"] == wanted.prompt_tokens.sum()
    assert seen["tokens"]["output_told"] == wanted.output_tokens.sum()
    assert seen["tbt_ns"]["n"] == wanted.output_tokens.sum() - 20
    both = {row["measure"]: row for row in seen["beside_engine"]}
    assert {name: row["requests"] for name, row in both.items()} == dict.fromkeys(both, 20)
    for measure in ("ttft", "e2e"):  # the client's begin earlier and end later
        for mark in ("p50", "p90", "p99", "max"):
            assert both[measure][f"client_{mark}_ns"] >= both[measure][f"engine_{mark}_ns"] > 0

    rows = pq.read_table(out).to_pylist()
    assert [row["output_tokens"] for row in rows] == wanted.output_tokens.tolist()
    assert [len(row["gaps_ns"]) for row in rows] == (wanted.output_tokens - 1).tolist()
    assert [row["scheduled_ns"] for row in rows] == wanted.at_ns.tolist()
    assert all(row["e2e_ns"] == row["ttft_ns"] + sum(row["gaps_ns"]) for row in rows)

    trace = tmp_path / "t.jsonl"
    whose = ("--exporter", here(served), "--engine", "lab")
    assert main(["export", "--trace", str(trace), *whose, "--from", f"{began_s:.3f}"]) == 0
    assert "20 arrivals over" in capsys.readouterr().out
    again = read_trace(trace)
    # two that came within the client's lateness may have changed places
    for column in ("prompt_tokens", "output_tokens"):
        assert sorted(getattr(again, column)) == sorted(getattr(wanted, column))
    assert told(capsys, "replay", url, trace)["statuses"] == {"ok": 20}


class _Deaf(BaseHTTPRequestHandler):
    """An exporter that is there, and takes nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.send_error(503)

    def log_message(self, *_: Any) -> None:
        pass


def test_figures_that_the_exporter_does_not_take_are_told_all_the_same(
    lab: Any, capsys: Any
) -> None:
    with HTTPServer(("127.0.0.1", 0), _Deaf) as deaf:
        serves = threading.Thread(target=deaf.serve_forever)
        serves.start()
        where = f"http://127.0.0.1:{deaf.server_port}"
        assert main(["replay", lab[1], *LAW, "--post", "--exporter", where, "--json"]) == 1
        deaf.shutdown()
        serves.join(10)
    said = capsys.readouterr()
    assert json.loads(said.out)["statuses"] == {"ok": 20}
    assert "503" in said.err


def test_what_an_engine_recorded_is_replayed_to_the_nanosecond(tmp_path: Path, capsys: Any) -> None:
    """Virtual time, each request alone: arrivals and lengths come back as they were."""
    rng = np.random.default_rng(1)
    wanted = Trace(
        at_ns=np.cumsum(rng.integers(2 * S, 3 * S, 40)) * (np.arange(40) > 0),
        prompt_tokens=rng.integers(1, 900, 40),
        output_tokens=rng.integers(1, 30, 40),
    )
    with Served(tmp_path) as served:
        simulation = Simulation(EngineConfig(runner="cost"), start_ns=S)
        clock, env = simulation.clock, recorded(served.rings, BATCHSCOPE_ENGINE="virtual")
        handle = mini.attach(simulation.engine, env, clock=clock, wall=lambda: EPOCH + clock())
        simulation.run(wanted)
        handle.detach()
        asked = {"engine": "virtual", "from_ns": 0, "to_ns": 2**62}
        until(lambda: len(_column(served, "arrivals", "finish_reason", **asked)) == 40)
        trace = tmp_path / "t.jsonl"
        assert main(["export", "--trace", str(trace), "--exporter", here(served)]) == 0
        store = served.store.path
    assert list(read_trace(trace)) == list(wanted)
    again = tmp_path / "again.jsonl"
    assert main(["export", "--trace", str(again), "--store", str(store)]) == 0
    assert again.read_bytes() == trace.read_bytes()
    capsys.readouterr()


def _column(served: Any, query: str, name: str, **params: Any) -> list[Any]:
    columns = served.http.get(f"/api/v1/query/{query}", params=params).json()["columns"]
    return [value for value in columns[name] if value is not None]


def row(**known: Any) -> dict[str, Any]:
    base = {"arrived_unix_ns": 9, "prompt_tokens": 8, "output_tokens": 4, "max_tokens": 50}
    more = {"finish_reason": "stop", "broken": False, "lasted_ns": 70, "tenant": None}
    return base | more | {"model": None} | known


def test_in_virtual_time_too_a_client_that_has_left_sees_no_token_any_more() -> None:
    """Iterations of 10 ms and more: each of these leaves within one, and the last at the end."""
    patience_ns = (np.arange(40) + 1) * MS
    offered = Trace(
        at_ns=np.arange(40) * S,
        prompt_tokens=np.full(40, 100),
        output_tokens=np.full(40, 3),
        abort_after_ns=patience_ns,
    )
    seen = bundled.virtual({}, seed=0, quiet=True).play(offered, word="")
    for one, left_ns in zip(seen.outcomes, patience_ns.tolist(), strict=True):
        assert all(at <= one.scheduled_ns + left_ns for at in one.token_ns)
        assert (one.status is Status.OK) == (len(one.token_ns) == 3)
    assert {one.status for one in seen.outcomes} == {Status.OK, Status.LEFT}


def test_who_was_cut_short_is_replayed_as_meant_and_what_is_unknown_left_out() -> None:
    made, left_out = export.arrivals(
        [
            row(tenant="red"),
            row(arrived_unix_ns=10, finish_reason="abort", output_tokens=2),
            row(finish_reason="shed", output_tokens=0),
            row(finish_reason="shed", output_tokens=0, max_tokens=None),
            row(finish_reason=None),
            row(broken=True),
            row(prompt_tokens=None),
        ]
    )
    assert [(a.output_tokens, a.abort_after_ns) for a in made] == [(4, None), (50, 70), (50, None)]
    assert [a.ordinal for a in made] == [0, 1, 2]
    assert (made[0].session, made[1].at_ns, made[0].prefix) == ("red", 1, None)
    assert sorted(left_out.values()) == [1, 1, 2]


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [("-10s", 990), ("-2m", 880), ("500", 500), ("500.5", 500.5), ("1970-01-01T00:01+00:00", 60)],
)
def test_points_in_time_are_read_as_people_write_them(text: str, expected_s: float) -> None:
    assert export.instant_ns(text, now_ns=1000 * S) == expected_s * S


@pytest.mark.parametrize("text", ["", "-", "-m", "yesterday", "-1x", "1e400"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="as a time"):
        export.instant_ns(text, now_ns=0)


def test_the_same_seed_gives_the_same_virtual_figures(capsys: Any) -> None:
    words = ("replay", "--engine", "cost", "chat", "--rate", "3", "--duration", "5")
    first, again = told(capsys, *words), told(capsys, *words)
    other = told(capsys, *words, "--seed", "1")
    assert first == again != other
    assert first["lateness_ns"]["max"] == 0
    assert first["traffic"]["preset"] == "chat"


def test_a_sweep_brackets_the_capacity_that_is_known_in_closed_form(capsys: Any) -> None:
    """Two slots; 32 tokens take 32 steps of 10.3 ms and a little KV: 2 / 0.3305 s = 6.05/s."""
    lengths = ("constant", "--prompt-tokens", "32", "--output-tokens", "32")
    slo = ("--slo", "ttft<=100ms", "--sweep", "0.9", "--precision", "0.02")
    words = ("replay", "--engine", "cost", *lengths, *slo, "--duration", "20", "--rate", "2")
    found = told(capsys, *words, "--set", "max_num_seqs=2")
    assert found["precise"]
    assert found["capacity_per_s"] <= 6.05 * 1.02
    assert found["missed_at_per_s"] >= 6.05 * 0.98
    assert found["missed_at_per_s"] <= found["capacity_per_s"] * 1.02
    for point in found["points"]:
        reached = point["attainment"] >= 0.9
        assert reached == (point["rate_per_s"] <= found["capacity_per_s"])
        assert point["offered_per_s"] == pytest.approx(point["rate_per_s"], rel=1e-6)


def sweep(capsys: Any, slo: str, *words: str, code: int = 0) -> Any:
    """What a sweep of the cost model says: (stdout, stderr)."""
    asked = ("--sweep", "0.9", "--slo", slo, *SMALL, *words)
    assert main(["replay", "--engine", "cost", "poisson", *asked]) == code
    return capsys.readouterr()


def test_a_hopeless_sweep_ends_where_the_same_requests_would_come_again(capsys: Any) -> None:
    said = sweep(capsys, "ttft<=1us", code=1)
    assert [line.split()[0] for line in said.err.splitlines()] == [
        *("1/s", "0.5/s", "0.25/s", "0.125/s", "0.0625/s", "0.03125/s")
    ]
    assert "not even 0.03125/s; 6 points measured" in said.out
    assert "a lower rate would offer the same 2 requests again" in said.out


def test_a_capacity_that_rests_on_few_requests_says_so(capsys: Any) -> None:
    few = sweep(capsys, "ttft<=50ms", "--duration", "0.01", "--rate", "100")
    assert re.search(r"^it rests on as few as \d\d? requests: a longer", few.out, re.MULTILINE)
    many = sweep(capsys, "ttft<=1s", "--duration", "10", "--rate", "50", "--most-points", "1")
    assert "capacity at least 50/s" in many.out
    assert "rests on" not in many.out


def test_a_sweep_of_a_server_ends_a_hopeless_point_early_and_says_so(lab: Any, capsys: Any) -> None:
    _, url = lab
    sweep = ("--sweep", "0.9", "--slo", "ttft<=1us", "--most-points", "2", "--duration", "2")
    assert main(["replay", url, "poisson", "--rate", "50", *SMALL, *sweep]) == 1
    said = capsys.readouterr()
    assert "no rate reached 0.9 of ttft<=0.001ms, not even 25/s; 2 points measured" in said.out
    most = re.findall(r"misses 0.9: attainment at most (0\.\d+)", said.err)
    assert len(most) == 2
    assert max(map(float, most)) < 0.9


def test_a_run_that_is_interrupted_tells_what_it_saw(lab: Any) -> None:
    served, url = lab
    command = [sys.executable, "-W", "error", "-m", "batchscope.exporter.cli", "replay", url]
    lengths = ("--prompt-tokens", "777", "--output-tokens", "3")
    child = subprocess.Popen(
        [*command, "constant", "--rate", "50", "--duration", "600", *lengths, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"BATCHSCOPE_URL": "http://127.0.0.1:1"},
    )
    asked = {"engine": "lab", "from_ns": 0, "to_ns": 2**62}
    try:
        until(lambda: _column(served, "arrivals", "prompt_tokens", **asked).count(777) > 5, 30)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=DEADLINE_S)
    finally:
        child.kill()
    assert (child.returncode, err) == (0, "")
    seen = json.loads(out)
    assert seen["interrupted"]
    assert seen["statuses"]["ok"] >= 1
    assert seen["came_due"] < 30_000


def test_a_run_without_one_answer_fails_and_says_why(lab: Any, capsys: Any) -> None:
    _, url = lab
    long = ("poisson", "--rate", "50", "--requests", "3", "--prompt-tokens", "9000")
    assert main(["replay", url, *long, "--slo", EASY]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^3 requests to http.*: 3 refused$", out, re.MULTILINE)
    assert re.search(r"^refused: .*above max_model_len 8192", out, re.MULTILINE)
    assert "attainment 0.0000 (3 failed)" in out
    assert re.search(r"^ttft +- +-", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("warm_up", "counted", "well"),
    [
        (["ok"], ["timeout", "timeout"], False),
        (["timeout"], ["ok", "timeout"], True),
        (["ok"], [], True),
        (["timeout"], [], False),
        ([], ["left", "left"], True),
        (["ok"], ["left", "timeout"], False),
        ([], [], False),
    ],
)
def test_a_run_is_good_for_what_counts_and_who_left_as_meant_is_no_failure(
    warm_up: list[str], counted: list[str], well: bool
) -> None:
    ends = [(0, end) for end in warm_up] + [(S, end) for end in counted]
    outcomes = [
        Outcome(Arrival(n, at_ns, 3, 2), f"r-{n}", at_ns, status=Status(end))
        for n, (at_ns, end) in enumerate(ends)
    ]
    assert answered(Played(0, outcomes=outcomes), Terms(warm_up_ns=S)) is well


def test_a_trace_of_which_all_leave_ends_with_0(capsys: Any, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    write(trace, [Arrival(0, 0, 500, 400, abort_after_ns=MS)])
    assert told(capsys, "replay", *ENGINE, trace)["statuses"] == {"left": 1}


def test_the_usage_names_url_and_traffic_once(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage == "usage: batchscope replay [URL] TRAFFIC [option ...]"


def test_a_server_that_tells_neither_ids_nor_text_leaves_the_instants_unknown() -> None:
    silent = Outcome(Arrival(0, 0, 3, 2), "r-0", 0, status=Status.OK, ended_ns=9, output_tokens=2)
    told = report(Played(0, outcomes=[silent]), "here", traffic(Wish("chat", 1.0)), Terms())
    assert (told["ttft_ns"], told["tbt_ns"]) == (None, None)
    assert "the server told neither ids nor text: when its tokens came is unknown" in lines(told)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat"], "say URL and TRAFFIC"),
        ([*ENGINE, "a", "b"], "say TRAFFIC alone"),
        (["here", "chat", "--rate", "1"], "'here' is no http:// or https:// address: write it as"),
        (["127.0.0.1:9", "chat", "--rate", "1"], "write it as http://127.0.0.1:9\n"),
        (["box:9/v1", "chat", "--rate", "1"], "write it as http://box:9\n"),
        (["[::1]:9", "chat", "--rate", "1"], "write it as http://[::1]:9\n"),
        ([":9", "chat", "--rate", "1"], "write it as http://127.0.0.1:9\n"),
        (["ftp://me:1@box:9", "chat", "--rate", "1"], "write it as http://box:9\n"),
        ([*ENGINE, "nope"], "no file 'nope', nor a law of that name"),
        ([*ENGINE, "chat"], "chat has no rate of its own"),
        ([*ENGINE, "chat", "--rate", "1", "--slo", "fast"], "'fast'"),
        ([*ENGINE, "chat", "--sweep", "0.9"], "--sweep needs an SLO"),
        ([*ENGINE, "chat", "--rate", "1", "--set", "x=1"], "no setting 'x'; it has block_size"),
        ([*ENGINE, "chat", "--rate", "1", "--set", "num_blocks=0"], "num_blocks must be at least"),
        ([*ENGINE, "chat", "--rate", "1", "--set", "num_blocks=x"], "'x' can't be num_blocks"),
        ([*ENGINE, "chat", "--rate", "1", "--set", "policy=x"], "it must be chunked, "),
        ([*ENGINE, "chat", "--rate", "1", "--set", "role=x"], "it must be both, "),
        ([*ENGINE, "chat", "--rate", "1", "--set", "backlog_ratio=2"], "must be above 0 and at"),
        (["http://127.0.0.1:1", "chat", "--set", "seed=1"], "--set is for the bundled engine"),
        ([*ENGINE, "poisson", "--rate", "1", "--prompt-tokens", "9000"], "above max_model_len"),
        ([*ENGINE, "chat", "--rate", "1", "--post"], "saw nothing of virtual time"),
        ([*ENGINE, "chat", "--rate", "1", "--warm-up", "-1"], "warm-up can't be below 0"),
        ([*ENGINE, "chat", "--rate", "1", "-o", __file__], "is there already"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str, capsys: Any) -> None:
    assert said in refused(capsys, "replay", *words) + "\n"


def test_a_server_that_isnt_there_is_one_sentence(capsys: Any) -> None:
    words = ("replay", "http://127.0.0.1:1", "chat", "--rate", "1")
    assert "no server answers at http://127.0.0.1:1" in refused(capsys, *words, code=1)


def test_an_export_that_cant_be_made_is_one_sentence(lab: Any, capsys: Any, tmp_path: Path) -> None:
    served, _ = lab
    whose = ("--exporter", here(served), "--engine")
    there = tmp_path / "there.jsonl"
    write(there, [])
    none = ("export", "--trace", tmp_path / "t", *whose, "nobody")
    assert "no request of 'nobody' arrived then" in refused(capsys, *none, code=1)
    store = ("export", "--trace", tmp_path / "t", "--store", tmp_path / "none.duckdb")
    assert "there is no file" in refused(capsys, *store)
    ago = ("export", "--trace", tmp_path / "t", *whose, "lab", "--from", "-9h", "--to", "-8.5h")
    assert "no request of 'lab' arrived then" in refused(capsys, *ago, code=1)
    over = ("export", "--trace", there, *whose, "lab")
    assert "File exists" in refused(capsys, *over)


SPLIT = {"first": "prefill", "second": "decode", "door": "frontend"}


def stored(folder: Path, roles: dict[str, str]) -> Path:
    """A store that has seen these engines, and no request."""
    hellos = [
        (ring, {"ring_uuid": f"{ring:032x}", "engine": engine, "kind": "mini", "role": role})
        for ring, (engine, role) in enumerate(roles.items(), start=78)
    ]
    rows = [facts.engine(hello, ring, state="dead", ended_unix_ns=9) for ring, hello in hellos]
    store = Store.open(folder / "s.duckdb")
    store.commit(Commit(appended={"engines": facts.table("engines", rows)}))
    store.close()
    return folder / "s.duckdb"


@pytest.mark.parametrize(
    ("roles", "named", "said"),
    [
        (
            SPLIT | {"lab": "both"},
            (),
            "batchscope: taken is lab: first, second served halves of requests\n",
        ),
        (SPLIT | {"lab": "both"}, ("--engine", "lab"), ""),
        ({"lab": "both", "door": "frontend"}, (), ""),
    ],
)
def test_an_engine_that_is_taken_from_beside_halves_is_named(
    roles: dict[str, str], named: tuple[str, ...], said: str, tmp_path: Path, capsys: Any
) -> None:
    asked = ("export", "--trace", tmp_path / "t", "--store", stored(tmp_path, roles), *named)
    assert main([*map(str, asked)]) == 1
    none = "batchscope: no request of 'lab' arrived then\n"
    assert capsys.readouterr().err == said + none


@pytest.mark.parametrize("named", [(), ("--engine", "first")])
def test_half_of_a_split_has_no_trace_of_what_clients_asked_for(
    named: tuple[str, ...], tmp_path: Path, capsys: Any
) -> None:
    asked = ("export", "--trace", tmp_path / "t", "--store", stored(tmp_path, SPLIT), *named)
    assert "first saw the prefill half of each request" in refused(capsys, *asked)
    assert not (tmp_path / "t").exists()


def test_a_run_of_which_engines_recorded_halves_alone_says_so() -> None:
    served = Outcome(Arrival(0, 0, 3, 2), "r-0", 0, status=Status.OK, ended_ns=9, output_tokens=2)
    seen = report(Played(0, outcomes=[served]), "here", traffic(Wish("chat", 1.0)), Terms())
    none = lines(seen | {"beside_engine": [], "recorded_by": []})
    assert none[-1].endswith("the exporter has recorded none of these requests in an engine")
    halves = lines(seen | {"beside_engine": [], "recorded_by": ["a", "b"]})
    assert halves[-1].endswith(
        "nothing to compare: a, b recorded halves of them or the warm-up alone"
    )


def test_a_warm_up_that_swallows_the_whole_run_is_said(capsys: Any) -> None:
    assert main(["replay", *ENGINE, *LAW, "--warm-up", "60"]) == 0
    said = capsys.readouterr().out
    assert "0 requests to cost model in virtual time (and 20 of the warm-up): none" in said
    assert "all of them came within the warm-up: there is nothing to tell" in said
