"""An engine's ring and its front end's, through a pipeline into the store: one request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.records import UNIX_NS, Script
from tests.support.served import until

from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.store import Store
from batchscope.schemas.ring import RingWriter

MS = 1_000_000
HOUR = {"engine": "vllm", "from_ns": str(UNIX_NS), "to_ns": str(UNIX_NS + 3600 * 10**9)}
Row = dict[str, Any]


def core() -> Script:
    """One request: 3 tokens at 20, 30 and 50 ms; arrived at 2 ms."""
    s = Script(engine="vllm", kind="vllm").arrived(1, prompt=5, at=2 * MS, key=77)
    s.scheduled(at=10 * MS, prefill=[(1, 0, 5)]).completed(at=20 * MS)
    for at in (30, 50):
        s.scheduled(at=at * MS - 5 * MS, decode=[1]).completed(at=at * MS)
    return s.finished(1, at=50 * MS, output=3, reason="length")


def front_end() -> Script:
    """The same request by its key: there at 1 ms, tokens handed over 2, 2 and 4 ms later."""
    s = Script(engine="vllm", kind="vllm", role="frontend", dp_rank=None)
    s.arrived(9, prompt=5, at=MS, key=77)
    for at, lag in ((20, 2), (30, 2), (50, 4)):
        s.delivered(at=(at + lag) * MS, ready=at * MS, tokens={9: 1})
    return s.finished(9, at=54 * MS, output=3, reason="length")


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    writers = [written(tmp_path / "rings", script) for script in (core(), front_end())]
    options = Options(commit_s=0.02, rest_s=(0.01, 0.05), look_s=0.05)
    made = Pipeline(tmp_path / "rings", Store.open(tmp_path / "s.duckdb"), options=options)
    made.start()
    until(lambda: made.store.rows("SELECT count(*) FROM requests, deliveries") == [(1,)])
    yield made
    made.stop()
    made.store.close()
    for writer in writers:
        writer.close(unlink=True)


def written(folder: Path, script: Script) -> RingWriter:
    """A ring with a script's records; both processes read one machine's clocks."""
    hello = {k: v for k, v in script.hello.items() if k not in ("ring_uuid", "mono_ns", "unix_ns")}
    writer = RingWriter(folder, hello, size=1 << 20, mono=lambda: 0, wall=lambda: UNIX_NS)
    while not writer.grow():
        pass
    for body in script.bodies[1:]:
        writer.append(body)
    return writer


def ask(pipeline: Pipeline, name: str, **params: str) -> list[Row]:
    rows: list[Row] = pipeline.store.query(name, params).to_pylist()
    return rows


def test_a_request_is_found_at_both_ends_by_its_key(pipeline: Pipeline) -> None:
    ((ring, serial),) = pipeline.store.rows("SELECT ring_id, serial FROM requests")
    (row,) = ask(pipeline, "request_deliveries", ring_id=str(ring), serial=str(serial))
    assert (row["serial"], row["delivered_tokens"], row["lag_max_ns"]) == (9, 3, 4 * MS)
    assert (row["first_unix_ns"], row["last_unix_ns"]) == (UNIX_NS + 22 * MS, UNIX_NS + 54 * MS)


def test_what_the_front_end_adds_is_a_question_of_its_own(pipeline: Pipeline) -> None:
    (row,) = ask(pipeline, "front_ends", **HOUR)
    assert (row["requests"], row["streamed"], row["lost_tokens"]) == (1, 1, 0)
    assert (row["front_p50_ns"], row["lag_first_p50_ns"], row["lag_max_ns"]) == (MS, 2 * MS, 4 * MS)
    assert (row["core_ttft_p50_ns"], row["ttft_p50_ns"]) == (18 * MS, 21 * MS)
    assert (row["core_tpot_p50_ns"], row["tpot_p50_ns"]) == (15 * MS, 16 * MS)
    assert (row["core_gap_max_ns"], row["gap_max_ns"]) == (20 * MS, 22 * MS)


def test_nothing_is_counted_twice_and_a_front_end_is_no_engine(pipeline: Pipeline) -> None:
    (view,) = pipeline.engines()
    assert (view.labels["role"], view.totals.counters["output_tokens", ()]) == ("both", 3)
    assert pipeline.exporter_values()["rings", ("live",)] == 2
    (choice,) = ask(pipeline, "engine_choices")
    assert (choice["role"], choice["rings"]) == ("both", 1)
    assert ask(pipeline, "trust", **HOUR)[0]["checks"] > ask_core_checks(pipeline)
    assert ask(pipeline, "marks_and_losses", **HOUR)[0]["kind"] == "attach"


def ask_core_checks(pipeline: Pipeline) -> int:
    core_ring = "(SELECT ring_id FROM engines WHERE role = 'both')"
    sql = f"SELECT sum(checks) FROM audit WHERE ring_id IN {core_ring}"
    return int(pipeline.store.rows(sql)[0][0])
