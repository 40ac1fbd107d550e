"""Client runs: what a load generator hands in, beside what the engine's side recorded."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.served import RING, Served, until

from batchscope.exporter import client_runs, facts, retention
from batchscope.exporter.errors import StoreError
from batchscope.exporter.pipeline import MOST_POSTED
from batchscope.exporter.store import Commit, Store

S = 10**9
RUN = {
    "run": "abc",
    "target": "http://127.0.0.1:8000",
    "began_unix_ns": 5 * S,
    "unix_ns": 9 * S,
    "requests": 2,
    "most_under_way": 1,
    "under_way_cap": 4096,
    "slo": "ttft<=1000ms",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Any:
    with Served(tmp_path_factory.mktemp("runs")) as running:
        yield running


def request(ordinal: int, request_id: str, **known: Any) -> dict[str, Any]:
    at = (5 + ordinal) * S
    base = {"ordinal": ordinal, "request_id": request_id, "status": "ok"}
    return base | {"scheduled_unix_ns": at, "unix_ns": at + S, "ttft_ns": 7} | known


def hand_in(served: Any, run: str, *requests: dict[str, Any]) -> None:
    content = {"run": run, "requests": list(requests)}
    answer = served.http.post("/api/v1/client-requests", json=content)
    assert (answer.status_code, answer.json()) == (201, {"run": run, "requests": len(requests)})


def columns(served: Any, query: str, **params: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = served.http.get(f"/api/v1/query/{query}", params=params).json()
    return found["columns"]  # type: ignore[return-value]


def test_a_run_and_its_requests_are_stored_and_joined_to_the_engines_by_id(served: Any) -> None:
    assert served.http.post("/api/v1/client-runs", json=RUN).status_code == 201
    # the engine knows the second by the hash of another of its names
    hand_in(served, "abc", request(0, "abc-0"), request(1, "abc-1", names=["cmpl-x", "req-42"]))
    until(lambda: len(columns(served, "client_requests", run="abc")["ordinal"]) == 2)
    joined = columns(served, "client_requests", run="abc")
    assert joined["request_id"] == ["abc-0", "abc-1"]
    assert joined["ring_id"] == [None, RING]
    assert joined["engine_output_tokens"] == [None, 7]
    assert joined["ttft_ns"] == [7, 7]
    runs = columns(served, "client_runs")
    assert (runs["run"], runs["requests"], runs["slo"]) == (["abc"], [2], ["ttft<=1000ms"])
    assert runs["interrupted"] == [False]


def test_what_is_handed_in_again_counts_once_and_the_last_word_holds(served: Any) -> None:
    for ttft_ns, seconds in ((7, 9), (8, 10)):
        again = RUN | {"run": "twice", "unix_ns": seconds * S}
        assert served.http.post("/api/v1/client-runs", json=again).status_code == 201
        hand_in(served, "twice", request(0, "req-42", ttft_ns=ttft_ns))
        until(lambda: columns(served, "client_requests", run="twice")["ttft_ns"] == [ttft_ns])  # noqa: B023
    runs = columns(served, "client_runs")
    assert [at for run, at in zip(runs["run"], runs["unix_ns"], strict=True) if run == "twice"] == [
        10 * S
    ]


def test_ids_are_kept_plain_and_hashed_once_each(served: Any) -> None:
    one = client_runs.ClientRequest(**request(0, "a", names=["a", "b"]))
    new = client_runs.NewClientRequests(run="r", requests=[one])
    (plain,) = client_runs.request_rows(new, salt=None)
    (both,) = client_runs.request_rows(new, salt=b"0" * 16)
    assert plain["keys"] == ["a", "b"]
    assert both["keys"][:2] == ["a", "b"]
    assert [len(key) for key in both["keys"]] == [1, 1, 16, 16]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"ordinal": -1}, "ordinal"),
        ({"ordinal": 2**32}, "ordinal"),
        ({"ttft_ns": 2**62}, "ttft_ns"),
        ({"ttft_ns": "7"}, "ttft_ns"),
        ({"unix_ns": 1.5}, "unix_ns"),
        ({"request_id": "a\0b"}, "request_id"),
        ({"request_id": "x" * 300}, "request_id"),
        ({"finish_reason": "\ud800"}, "finish_reason"),
        ({"status": "DROP TABLE"}, "status"),
        ({"names": ["x"] * 9}, "names"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_row_that_would_not_fit_the_store_is_refused_at_the_door(
    served: Any, change: dict[str, Any], where: str
) -> None:
    content = {"run": "bad", "requests": [request(0, "bad-0") | change]}
    body = json.dumps(content)  # which spells a lone surrogate in ASCII
    headers = {"content-type": "application/json"}
    answer = served.http.post("/api/v1/client-requests", content=body, headers=headers)
    assert answer.status_code == 422, answer.text
    assert where in answer.json()["detail"]


def test_the_largest_values_that_are_taken_fit_the_store(served: Any) -> None:
    durations = [name for name in client_runs.ClientRequest.model_fields if name.endswith("_ns")]
    counts = ("http_status", "prompt_tokens", "output_tokens")
    most = dict.fromkeys(durations, 2**62 - 1) | dict.fromkeys(counts, 2**32 - 1)
    hand_in(served, "big", request(0, "big-0") | most | {"verdict": "m" * 32})
    until(lambda: columns(served, "client_requests", run="big")["ordinal"] == [0])
    assert columns(served, "client_requests", run="big")["tbt_max_ns"] == [2**62 - 1]


def test_rows_that_the_store_cant_take_yet_are_bounded(served: Any) -> None:
    with pytest.raises(StoreError, match="behind"):
        served.pipeline.post("client_requests", [{}] * (MOST_POSTED + 1))


def test_a_clients_word_about_time_moves_no_retention(served: Any) -> None:
    assert not set(retention.POSTED) & {*retention.SUMMARY, *retention.DETAIL}


def test_only_whole_requests_of_one_engine_are_compared(tmp_path: Path) -> None:
    """A half of a split request counts its own part of the time alone."""
    halves = [(77, "both", "r-0"), (78, "prefill", "r-1"), (79, "decode", "r-1")]
    asked = [client_runs.ClientRequest(**request(n, f"r-{n}")) for n in range(3)]
    new = client_runs.NewClientRequests(run="r", requests=asked)
    seen = facts.table("client_requests", client_runs.request_rows(new, salt=None))
    engines = facts.table("engines", [engine_row(ring, role) for ring, role, _ in halves])
    requests = pa.concat_tables([request_row(ring, key) for ring, _, key in halves])
    store = Store.open(tmp_path / "s.duckdb")
    rows = {"engines": engines, "requests": requests, "client_requests": seen}
    store.commit(Commit(appended=rows))
    joined = store.query("client_requests", {"run": "r"}).to_pydict()
    latency = store.query("client_latency", {"run": "r"}).to_pydict()
    store.close()
    assert (joined["ordinal"], joined["ring_id"]) == ([0, 1, 1, 2], [77, 78, 79, None])
    assert (latency["measure"], latency["requests"]) == (["ttft"], [1])
    assert (latency["client_p50_ns"], latency["engine_p99_ns"]) == ([7], [5])


def engine_row(ring: int, role: str) -> dict[str, Any]:
    hello = {"ring_uuid": f"{ring:032x}", "engine": f"e{ring}", "kind": "mini", "role": role}
    return facts.engine(hello, ring, state="live", ended_unix_ns=None)


def request_row(ring: int, key: str) -> Any:
    tokens = ("prefill_tokens", "decode_tokens", "output_tokens", "cached_on_resume_tokens")
    counts = ("recomputed_tokens", "steps", "preemptions", "lost_tokens", "deferrals")
    row = {"ring_id": ring, "serial": 1, "request_key": key, "unix_ns": 5, "ttft_ns": 5}
    return pa.Table.from_pylist([row | {"broken": False} | dict.fromkeys((*tokens, *counts), 0)])
