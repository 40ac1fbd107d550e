"""The API: named questions only, typed answers, problems instead of faults, loopback by default."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.support.served import RING, Served, until

from batchscope.exporter.api import MAX_LIVE_CLIENTS, Service, build
from batchscope.exporter.guards import MAX_BODY_BYTES
from batchscope.exporter.queries import registry
from batchscope.exporter.store import Store

ARROW = "application/vnd.apache.arrow.stream"
TOKEN = "s3cret"


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Any:
    with Served(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def http(served: Any) -> Any:
    return served.http


def assert_problem(response: Any, status: Any, words: Any = "") -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert words in body["detail"]


def test_a_query_answers_as_json_columns_or_as_arrow(http: Any) -> None:
    plain = http.get("/api/v1/query/request?keys=x")
    assert plain.headers["content-type"] == "application/json"
    assert plain.json()["columns"]["serial"] == []
    arrow = http.get("/api/v1/query/request?keys=x", headers={"accept": ARROW})
    assert arrow.headers["content-type"] == ARROW
    assert pa.ipc.open_stream(arrow.content).read_all().num_rows == 0


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_example_in_the_documentation_works_as_it_is_written(http: Any, tmp_path: Any) -> None:
    page = (Path(__file__).parents[2] / "docs" / "schema.md").read_text()
    (example,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    here = example.replace("http://127.0.0.1:9477", str(http.base_url).rstrip("/"))
    subprocess.run(["bash", "-ec", here], cwd=tmp_path, capture_output=True, check=True)
    table = pa.ipc.open_stream((tmp_path / "health.arrow").read_bytes()).read_all()
    assert "ring_id" in table.column_names


def test_an_engine_that_nobody_knows_has_no_rows_or_one_that_counts_nothing(http: Any) -> None:
    given = {"engine": "nobody", "from_ns": "0", "to_ns": str(2**62)}
    asked = 0
    for query in registry().values():
        names = {p.name for p in query.params}
        required = {p.name for p in query.params if p.default is None}
        if "engine" in names and required <= given.keys():
            asked += 1
            mine = {name: given[name] for name in names & given.keys()}
            columns = http.get(f"/api/v1/query/{query.name}", params=mine).json()["columns"]
            values = [value for column in columns.values() for value in column]
            assert all(value is None or float(value) == 0 for value in values), query.name
    assert asked > 5


def test_every_named_query_runs_with_plain_parameters(http: Any) -> None:
    sample = {"BIGINT": "1", "UBIGINT": "1", "UINTEGER": "1", "INTEGER": "1", "DOUBLE": "1"}
    for name, query in registry().items():
        given = {p.name: sample.get(p.type, "x") for p in query.params}
        response = http.get(f"/api/v1/query/{name}", params=given)
        assert response.status_code == 200, (name, response.text)


def test_every_query_uses_exactly_the_parameters_it_declares() -> None:
    for name, query in registry().items():
        body = "\n".join(line.split("--")[0] for line in query.sql.splitlines())
        declared = {p.name for p in query.params}
        assert {p for p in declared if f"${p}" in body} == declared, name


def test_the_list_of_queries_says_what_each_answers(http: Any) -> None:
    listed = http.get("/api/v1/queries").json()
    assert [q["name"] for q in listed] == list(registry())
    assert all(q["question"].strip() for q in listed)


def test_the_first_page_leads_to_what_is_here_and_loads_nothing(http: Any) -> None:
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    links = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    assert links == ["/metrics", "/openapi.json", "/api/v1/queries", "/api/v1/engines", "/healthz"]
    for link in links[1:]:  # this one has no metrics
        assert http.get(link).status_code == 200, link
    assert "//" not in page.text
    assert "<script" not in page.text


def test_docs_leads_to_the_first_page(http: Any) -> None:
    moved = http.get("/docs")
    assert (moved.status_code, moved.headers["location"]) == (307, "/")


def test_unknown_names_and_bad_values_are_problems(http: Any) -> None:
    assert_problem(http.get("/api/v1/query/nothing"), 404, "no query is called 'nothing'")
    assert_problem(http.get("/api/v1/query/health?from_ns=x"), 422, "must be BIGINT")
    assert_problem(http.get("/api/v1/query/health?colour=1"), 422, "no parameter 'colour'")
    assert_problem(http.get("/nowhere"), 404)
    assert_problem(http.delete("/api/v1/marks"), 405)


def test_a_request_is_found_by_the_clients_id_and_by_its_key(http: Any, served: Any) -> None:
    by_id = http.get("/api/v1/request/req-42").json()["requests"]
    assert [(r["ring_id"], r["serial"]) for r in by_id] == [(RING, 1)]
    assert by_id[0]["waits"] == by_id[0]["gaps"] == by_id[0]["preemptions"] == []
    assert http.get(f"/api/v1/request/{by_id[0]['request_key']}").json()["requests"] == by_id
    assert_problem(http.get("/api/v1/request/nobody"), 404, "'nobody'")


def test_a_mark_appears_in_the_store(http: Any, served: Any) -> None:
    made = http.post("/api/v1/marks", json={"text": "deploy 7"})
    assert made.status_code == 201
    assert made.json()["kind"] == "user"
    until(lambda: ("deploy 7",) in served.store.rows("SELECT text FROM marks"))


def test_another_slo_is_the_next_version_and_is_kept(http: Any, served: Any) -> None:
    before = http.get("/api/v1/slo").json()
    changed = http.put("/api/v1/slo", json={"targets": "ttft<=2s,tbt_p99<=200ms"}).json()
    assert changed["version"] == before["version"] + 1
    assert changed["targets_ns"] == {"ttft": 2_000_000_000, "tbt_p99": 200_000_000}
    until(lambda: (changed["version"],) in served.store.rows("SELECT version FROM slo"))
    assert_problem(http.put("/api/v1/slo", json={"targets": "speed<=1s"}), 422, "speed")


def test_live_sends_events_and_ends_when_asked(http: Any) -> None:
    with http.stream("GET", "/api/v1/live?interval_ms=250&events=2") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line]
    assert [set(e) for e in events] == [{"unix_ns", "engines"}] * 2
    assert events[1]["unix_ns"] > events[0]["unix_ns"]


def test_the_number_of_live_clients_is_bounded(http: Any, served: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(served.service, "live_clients", MAX_LIVE_CLIENTS)
    assert_problem(http.get("/api/v1/live"), 429, "16 clients")


def test_probes_say_why_the_store_is_down(http: Any, served: Any, monkeypatch: Any) -> None:
    assert http.get("/healthz").json() == http.get("/readyz").json() == {"status": "ok"}
    monkeypatch.setattr(served.pipeline._writer, "error", "the disk is full")
    assert_problem(http.get("/readyz"), 503, "the disk is full")
    assert http.get("/healthz").status_code == 200


def test_big_answers_are_compressed_when_the_client_takes_it(http: Any) -> None:
    squeezed = http.get("/openapi.json", headers={"accept-encoding": "gzip"})
    assert squeezed.headers["content-encoding"] == "gzip"
    plain = http.get("/openapi.json", headers={"accept-encoding": "identity"})
    assert plain.json() == squeezed.json()
    assert "/api/v1/query/health" in plain.json()["paths"]


def test_oversized_bodies_are_refused_with_and_without_a_length(http: Any) -> None:
    big = b"x" * (MAX_BODY_BYTES + 1)
    assert_problem(http.post("/api/v1/marks", content=big), 413)
    assert_problem(http.post("/api/v1/marks", content=iter([big[:9], big])), 413)


def test_pages_of_another_origin_may_read_nothing_and_write_nothing(http: Any) -> None:
    evil = {"origin": "http://evil.example"}
    assert_problem(http.post("/api/v1/marks", json={"text": "x"}, headers=evil), 403)
    rebound = {"host": "evil.example:9477"}
    assert_problem(http.get("/api/v1/queries", headers=rebound), 421)
    ours = {"origin": str(http.base_url).rstrip("/")}
    assert http.post("/api/v1/marks", json={"text": "x"}, headers=ours).status_code == 201


def test_with_a_token_everything_but_the_probes_asks_for_it(tmp_path: Any) -> None:
    with Served(tmp_path, token=TOKEN) as served:
        http = served.http
        assert http.get("/healthz").status_code == 200
        for path in ("/api/v1/queries", "/metrics", "/openapi.json", "/api/v1/query/health"):
            assert_problem(http.get(path), 401)
        for wrong in (
            "Bearer nope",
            "Basic s3cret",
            "Bearer",
            "Bearer s3cret\xff".encode("latin-1"),
        ):
            assert_problem(http.get("/api/v1/queries", headers={"authorization": wrong}), 401)
        right = {"authorization": f"Bearer {TOKEN}", "host": "gpu-box:9477"}
        assert http.get("/api/v1/queries", headers=right).status_code == 200


def test_a_store_alone_answers_queries_and_refuses_to_run(tmp_path: Any) -> None:
    store = Store.open(tmp_path / "s.duckdb")
    store.close()
    store = Store.open(tmp_path / "s.duckdb", read_only=True)
    transport = httpx.ASGITransport(app=build(Service(store)))

    async def ask() -> Any:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return [
                await http.get("/api/v1/query/engines"),
                await http.post("/api/v1/marks", json={"text": "x"}),
                await http.get("/metrics"),
            ]

    engines, mark, metrics = asyncio.run(ask())
    assert engines.json()["columns"]["engine"] == []
    assert_problem(mark, 409, "only reads a store")
    assert_problem(metrics, 404)
    store.close()
