"""The store: one transaction per commit, named queries only, one owner, one sentence per fault."""

import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from batchscope.exporter import store as store_module
from batchscope.exporter import tables
from batchscope.exporter.errors import QueryError, QueryTimeoutError, SchemaVersionError, StoreError
from batchscope.exporter.queries import NamedQuery, parse
from batchscope.exporter.store import Commit, RingState, Store

RING = 2**63 + 5


@pytest.fixture
def store(tmp_path: Any) -> Any:
    opened = Store.open(tmp_path / "s.duckdb")
    yield opened
    opened.close()


def gaps(*serials: Any, ring: Any = RING, unix_ns: Any = 1) -> Any:
    n = len(serials)
    columns: dict[str, Any] = {
        name: pa.array([1] * n) for name in tables.columns("gaps") if name != "batch_id"
    }
    columns |= {
        "ring_id": pa.array([ring] * n, pa.uint64()),
        "serial": pa.array(list(serials)),
        "preempted": pa.array([False] * n),
        "unix_ns": pa.array([unix_ns] * n),
    }
    return pa.table(columns)


def runs(*serials: Any, ring: Any = RING, **given: Any) -> Any:
    n = len(serials)
    row: dict[str, Any] = dict.fromkeys(
        ("n_iterations", "stride", "tokens_each", "emitted_each", "unix_ns"), 1
    )
    row |= {"first_iteration": 10, "phase": "decode", "recompute": False, "context_first": 100}
    row |= given
    columns = {name: pa.array([value] * n) for name, value in row.items()}
    return pa.table(
        {"ring_id": pa.array([ring] * n, pa.uint64()), "serial": list(serials), **columns}
    )


def state(seq: Any, ring: Any = RING, blob: Any = b"state") -> Any:
    return RingState(ring, f"{ring:032x}", seq, seq * 8, 1, blob)


def ask(store: Any, sql: Any, monkeypatch: Any, params: Any = None, **options: Any) -> Any:
    question = NamedQuery("probe", "?", sql, parse("probe", "-- ?\n" + sql).params)
    monkeypatch.setattr(store_module, "named", lambda _: question)
    return store.query("probe", params, **options)


def test_a_commit_writes_rows_open_rows_and_position_together(store: Any) -> None:
    batch = store.commit(
        Commit(
            appended={"gaps": gaps(1, 2)},
            replaced={"runs_open": runs(7)},
            states=[state(10)],
            rings=[RING],
        )
    )
    assert store.rows("SELECT serial, batch_id FROM gaps ORDER BY 1") == [(1, batch), (2, batch)]
    assert store.rows("SELECT serial FROM runs_open") == [(7,)]
    assert store.ring_states() == {f"{RING:032x}": state(10)}


def test_open_rows_of_a_ring_are_replaced_and_those_of_others_stay(store: Any) -> None:
    store.commit(Commit(replaced={"runs_open": runs(1, 2)}, rings=[RING]))
    store.commit(Commit(replaced={"runs_open": runs(3, ring=4)}, rings=[4]))
    store.commit(Commit(replaced={"runs_open": runs(5)}, rings=[RING]))
    assert store.rows("SELECT ring_id, serial FROM runs_open ORDER BY 2") == [(4, 3), (RING, 5)]
    assert store.rows("SELECT count(*) FROM all_runs") == [(2,)]


def test_a_commit_that_fails_half_way_leaves_nothing(store: Any) -> None:
    bad = runs(1).set_column(1, "serial", pa.array([None], pa.uint32()))
    with pytest.raises(StoreError, match="can't write to"):
        store.commit(Commit(appended={"gaps": gaps(1), "runs": bad}, states=[state(3)]))
    store.commit(Commit(appended={"gaps": gaps(2)}))
    assert store.rows("SELECT serial FROM gaps") == [(2,)]
    assert store.ring_states() == {}


def test_a_commit_that_was_durable_after_all_is_not_written_twice(store: Any) -> None:
    commit = Commit(appended={"gaps": gaps(1)})
    assert store.commit(commit) == store.commit(commit) == store.batch
    assert store.rows("SELECT count(*) FROM gaps") == [(1,)]


def test_batch_ids_go_on_after_a_reopen(tmp_path: Any) -> None:
    first = Store.open(tmp_path / "s.duckdb")
    batch = first.commit(Commit(appended={"gaps": gaps(1)}))
    first.close()
    second = Store.open(tmp_path / "s.duckdb")
    assert second.commit(Commit(appended={"gaps": gaps(2)})) == batch + 1
    second.close()


def test_every_declared_column_is_what_the_file_has(store: Any) -> None:
    for table in tables.table_names():
        real = {row[0]: row[1] for row in store.rows(f"DESCRIBE {table}")}
        assert tables.columns(table) == real


def test_a_store_held_by_another_process_names_it(store: Any) -> None:
    code = f"from batchscope.exporter.store import Store; Store.open({str(store.path)!r})"
    held = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"is held by another process ({os.path.realpath(sys.executable)}" in held.stderr
    assert f"pid {os.getpid()})" in held.stderr


def test_a_newer_store_is_refused_in_one_sentence(tmp_path: Any) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    with duckdb.connect(str(tmp_path / "s.duckdb")) as raw:
        raw.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    with pytest.raises(SchemaVersionError, match="schema version 99, this batchscope knows up to"):
        Store.open(tmp_path / "s.duckdb")


def test_an_older_store_is_migrated_step_by_step(tmp_path: Any, monkeypatch: Any) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    step = [lambda c: c.execute("ALTER TABLE marks ADD COLUMN colour VARCHAR")]
    monkeypatch.setattr(store_module, "MIGRATIONS", tuple(step))
    monkeypatch.setattr(store_module, "STORE_VERSION", 2)
    newer = Store.open(tmp_path / "s.duckdb")
    assert newer.rows("SELECT value FROM meta WHERE key = 'schema_version'") == [(2,)]
    assert ("colour",) in newer.rows("SELECT column_name FROM (DESCRIBE marks)")
    newer.close()


@pytest.mark.parametrize("content", [b"not a database" * 1000, b""])
def test_another_kind_of_file_is_not_overwritten(tmp_path: Any, content: Any) -> None:
    path = tmp_path / "s.duckdb"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not a DuckDB file"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't make the folder"):
        Store.open(tmp_path / "file" / "s.duckdb")


def test_a_read_only_store_answers_and_does_not_write(tmp_path: Any) -> None:
    first = Store.open(tmp_path / "s.duckdb")
    first.commit(Commit(appended={"gaps": gaps(1)}))
    first.close()
    later = Store.open(tmp_path / "s.duckdb", read_only=True)
    assert later.rows("SELECT count(*) FROM gaps") == [(1,)]
    with pytest.raises(StoreError):
        later.commit(Commit(appended={"gaps": gaps(2)}))
    later.close()


def test_nothing_outside_the_store_can_be_reached(store: Any, tmp_path: Any) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for sql in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"ATTACH '{tmp_path}/x.db'",
        f"COPY gaps TO '{tmp_path}/out.csv'",
        "SET memory_limit = '100GB'",
        "INSTALL httpfs",
    ):
        with pytest.raises(StoreError):
            store.rows(sql)
    assert not (tmp_path / "out.csv").exists()


def test_a_query_that_takes_too_long_is_interrupted(store: Any, monkeypatch: Any) -> None:
    start = time.monotonic()
    with pytest.raises(QueryTimeoutError):
        ask(
            store,
            "SELECT count(*) FROM range(99999999999) a, range(99) b",
            monkeypatch,
            timeout_s=0.2,
        )
    assert time.monotonic() - start < 5
    assert ask(store, "SELECT 1 AS one", monkeypatch).to_pydict() == {"one": [1]}


def test_readers_and_the_writer_work_at_once(store: Any) -> None:
    torn, finished = [], []

    def read() -> None:
        for _ in range(50):
            n, batches = store.rows("SELECT count(*), count(DISTINCT batch_id) FROM gaps")[0]
            torn.extend([(n, batches)] if n != 2 * batches else [])
        finished.append(True)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(30):
        store.commit(Commit(appended={"gaps": gaps(1, 2)}))
    for reader in readers:
        reader.join(20)
    assert torn == []
    assert len(finished) == 2


def test_members_expands_a_bounded_range_of_runs(store: Any) -> None:
    steady = runs(1, n_iterations=4, first_iteration=10, context_first=100)
    prefill = runs(2, phase="prefill", n_iterations=2, stride=2, tokens_each=512, context_first=0)
    store.commit(Commit(appended={"runs": steady}, replaced={"runs_open": prefill}, rings=[RING]))
    found = store.rows(
        "SELECT serial, iteration_id, tokens, context_tokens FROM members($r, 12, 12) ORDER BY 1",
        {"r": RING},
    )
    assert found == [(1, 12, 1, 102), (2, 12, 512, 512)]


def test_speculative_runs_keep_each_steps_emission_and_context(store: Any) -> None:
    emitted = pa.array([[3, 1, 2]], pa.list_(pa.uint32()))
    table = runs(1, n_iterations=3, tokens_each=4, emitted_each=None).append_column(
        "emitted", emitted
    )
    store.commit(Commit(appended={"runs": table}))
    found = store.rows(
        "SELECT emitted, context_tokens FROM members($r, 0, 99) ORDER BY 2", {"r": RING}
    )
    assert found == [(3, 100), (1, 103), (2, 104)]


def test_pruning_frees_blocks_and_keeps_the_newest(store: Any) -> None:
    for second in range(4):
        serials = random.Random(second).sample(range(2**32), 130_000)
        store.commit(Commit(appended={"gaps": gaps(*serials, unix_ns=second)}))
    store.checkpoint()
    before = store.used_bytes()
    assert store.prune("gaps", before_unix_ns=3) == 390_000
    store.checkpoint()
    assert store.used_bytes() < 0.6 * before
    assert store.rows("SELECT count(*) FROM gaps") == [(130_000,)]


PARAMS = parse(
    "p",
    "-- ?\n-- param: a BIGINT\n-- param: b VARCHAR = x\n-- param: c UBIGINT[] = NULL\n"
    "-- param: d DOUBLE = 0.5\n-- param: e BOOLEAN = true\nSELECT 1",
)


def test_parameters_are_typed_and_have_defaults() -> None:
    assert PARAMS.bind({"a": "-3"}) == {"a": -3, "b": "x", "c": None, "d": 0.5, "e": True}
    assert PARAMS.bind({"a": "1", "c": "1, 18446744073709551615", "e": "false"})["c"] == [
        1,
        2**64 - 1,
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "'a' .BIGINT. is missing"),
        ({"a": "1; DROP TABLE gaps"}, "'a' must be BIGINT"),
        ({"a": str(2**63)}, "outside"),
        ({"a": "1", "z": "1"}, "no parameter 'z'; known: a, b, c, d, e"),
        ({"a": "1", "d": "nan"}, "finite"),
        ({"a": "1", "e": "maybe"}, "true or false"),
        ({"a": "1", "b": "x" * 600}, "at most 512"),
        ({"a": "1", "b": "\ud800"}, "'b' must be VARCHAR"),
        ({"a": "1", "c": ",".join("1" * 300)}, "at most 256"),
    ],
)
def test_a_bad_parameter_is_named(given: Any, words: Any) -> None:
    with pytest.raises(QueryError, match=words):
        PARAMS.bind(given)


def test_an_unknown_query_names_the_known_ones(store: Any) -> None:
    with pytest.raises(QueryError, match=r"no query is called '\.\./etc'; known: "):
        store.query("../etc")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_was_removed_says_so_once_and_begins_anew(
    store: Any, tmp_path: Any, replaced: Any
) -> None:
    store.commit(Commit({"gaps": gaps(1)}, states=[state(3)]))
    store.path.unlink()
    if replaced:
        Store.open(tmp_path / "another.duckdb").close()
        (tmp_path / "another.duckdb").rename(store.path)
    second = Commit({"gaps": gaps(2, 3)}, states=[state(5)])
    with pytest.raises(StoreError, match=f"{tmp_path}.* was removed or replaced"):
        store.commit(second)
    store.commit(second)
    assert store.rows("SELECT serial FROM gaps ORDER BY 1") == [(2,), (3,)]
    assert store.path.exists()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("table", ["orders (id INTEGER)", "meta (name VARCHAR)"])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    tmp_path: Any, read_only: Any, table: Any
) -> None:
    path = tmp_path / "theirs.duckdb"
    with duckdb.connect(str(path)) as theirs:
        theirs.execute(f"CREATE TABLE {table}")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="has tables of something else: choose another --store"):
        Store.open(path, read_only=read_only)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
