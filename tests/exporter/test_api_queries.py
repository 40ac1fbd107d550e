"""The questions that the API itself asks: rows in, columns and their types out."""

from typing import Any

import pyarrow as pa
import pytest

from batchscope.exporter import tables
from batchscope.exporter.facts import engine, table
from batchscope.exporter.store import Commit, Store

RING = 2**63 + 5
ARROW: dict[str, Any] = {"VARCHAR": pa.string(), "BOOLEAN": pa.bool_(), "UBIGINT": pa.uint64()}
FILLER: dict[str, Any] = {"VARCHAR": "x", "BOOLEAN": False}


def rows(name: Any, *given: Any) -> Any:
    """Rows of a table; columns not given are NULL where they may be, else a filler."""
    ddl, columns = tables.ddl(name), {}
    for column, kind in tables.columns(name).items():
        if column != "batch_id":
            needed = f"{column} {kind} NOT NULL" in ddl
            filler = FILLER.get(kind, 0) if needed else None
            values = [row.get(column, filler) for row in given]
            columns[column] = pa.array(values, ARROW.get(kind, pa.int64()))
    return pa.table(columns)


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Any:
    opened = Store.open(tmp_path_factory.mktemp("queries") / "s.duckdb")
    hello = {"ring_uuid": f"{RING:032x}", "engine": "a", "kind": "mini", "unix_ns": 100}
    live = engine(hello, RING, state="live", ended_unix_ns=None)
    gone = engine(hello | {"engine": "b"}, 7, state="dead", ended_unix_ns=150)
    one = {"ring_id": RING, "serial": 1}
    iteration = {"ring_id": RING, "phase": "decode"}
    done = {**iteration, "iteration_id": 1, "unix_ns": 120, "completed_at_ns": 20}
    opened.commit(
        Commit(
            appended={
                "iterations": rows("iterations", done),
                "iterations_open": rows(
                    "iterations_open",
                    {**done, "iteration_id": 2, "unix_ns": 130},
                    {**iteration, "iteration_id": 3, "unix_ns": 140},
                ),
                "requests": rows("requests", {**one, "request_key": "k1", "unix_ns": 120}),
                "requests_open": rows(
                    "requests_open", {"ring_id": RING, "serial": 2, "external_key": "k2"}
                ),
                "waits": rows(
                    "waits",
                    {**one, "admission": 1, "reason": "preemption", "wait_ns": 5},
                    {**one, "reason": "kv_blocks", "wait_ns": 9},
                ),
                "gaps": rows("gaps", {**one, "iteration_id": 9, "gap_ns": 77}),
                "preemptions": rows("preemptions", {**one, "at_ns": 4, "lost_tokens": 30}),
                "losses": rows("losses", {"ring_id": RING, "unix_ns": 110, "records": 12}),
                "notices": rows(
                    "notices",
                    {"ring_id": RING, "unix_ns": 105, "kind": "fault", "seam": "add", "text": "t"},
                ),
                "audit": rows(
                    "audit",
                    {"ring_id": RING, "law": "kv_total", "checks": 5, "violations": 0},
                    {"ring_id": RING, "law": "tokens", "checks": 5, "violations": 2},
                ),
            },
            replaced={"engines": table("engines", [live, gone])},
            rings=[RING, 7],
        )
    )
    yield opened
    opened.close()


def ask(store: Any, name: Any, **params: Any) -> Any:
    return store.query(name, {key: str(value) for key, value in params.items()})


def test_engines_lists_every_ring_in_the_order_they_attached(store: Any) -> None:
    found = ask(store, "engines")
    assert found.column("engine").to_pylist() == ["b", "a"]
    assert found.column("ended_unix_ns").to_pylist() == [150, None]
    assert found.schema.field("ring_id").type == pa.uint64()


def test_newest_is_the_last_completed_iteration_of_live_rings(store: Any) -> None:
    (row,) = ask(store, "newest").to_pylist()
    assert (row["engine"], row["iteration_id"], row["unix_ns"]) == ("a", 2, 130)


def test_health_names_losses_notices_and_laws_that_failed(store: Any) -> None:
    found = ask(store, "health").to_pylist()
    assert [(r["kind"], r["subject"], r["count"], r["text"]) for r in found] == [
        ("audit", "tokens", 2, "no example"),
        ("notice", "fault add", 0, "t"),
        ("loss", None, 12, "12 records lost, iterations: unknown"),
    ]
    assert [r["kind"] for r in ask(store, "health", from_ns=106).to_pylist()] == ["audit", "loss"]


def test_a_request_is_found_by_any_of_its_keys_live_or_finished(store: Any) -> None:
    found = ask(store, "request", keys="k1,k2").to_pylist()
    assert sorted(r["serial"] for r in found) == [1, 2]
    assert ask(store, "request", keys="nobody").num_rows == 0


def test_a_requests_story_is_its_own(store: Any) -> None:
    which = {"ring_id": RING, "serial": 1}
    waits = ask(store, "request_waits", **which).to_pylist()
    assert [(w["admission"], w["reason"], w["wait_ns"]) for w in waits] == [
        (0, "kv_blocks", 9),
        (1, "preemption", 5),
    ]
    assert ask(store, "request_gaps", **which).column("gap_ns").to_pylist() == [77]
    assert ask(store, "request_preemptions", **which).column("lost_tokens").to_pylist() == [30]
    assert ask(store, "request_waits", ring_id=RING, serial=2).num_rows == 0


def test_totals_since_an_instant_are_of_what_came_since(store: Any) -> None:
    ring, given = RING + 1, {"phase": "decode", "decode_members": 2, "completed_at_ns": 1}
    hello = {"ring_uuid": f"{ring:032x}", "engine": "since", "kind": "mini", "unix_ns": 0}
    one = {"ring_id": ring, "unix_ns": 500, "cached_tokens": 5, "on_time_tokens": 3}
    store.commit(
        Commit(
            appended={
                "iterations": rows(
                    "iterations",
                    *({**given, "ring_id": ring, "unix_ns": n} for n in (100, 200, 300)),
                ),
                "runs": rows(
                    "runs", {"ring_id": ring, "unix_ns": 300, "n_iterations": 3, "phase": "decode"}
                ),
                "requests": rows(
                    "requests", *({**one, "arrived_unix_ns": n} for n in (50, 250, None))
                ),
            },
            replaced={
                "engines": table("engines", [engine(hello, ring, state="live", ended_unix_ns=None)])
            },
            rings=[ring],
        )
    )
    sums = ("member_steps", "arrived", "cached_tokens", "on_time_tokens")
    for since, wanted in ((0, (6, 3, 15, 9)), (150, (4, 2, 10, 6)), (250, (2, 2, 10, 6))):
        (row,) = ask(store, "run_totals", engine="since", from_unix_ns=since).to_pylist()
        assert tuple(int(row[name]) for name in sums) == wanted
