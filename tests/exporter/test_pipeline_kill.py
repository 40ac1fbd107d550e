"""Whoever dies, nothing is stored twice and nothing is missing: kill -9 of exporter and engine."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from batchscope.exporter import tables
from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.store import Store
from batchscope.schemas.ring import list_rings
from batchscope.schemas.slo import DEMO_SLO

KILLS = int(os.environ.get("BATCHSCOPE_TEST_KILLS", "10"))
STEPS = 250
WALL_CLOCK = {"marks": ["unix_ns"], "slo": ["since_unix_ns"], "ring_state": ["blob"]}
"""Columns that say when the exporter saw something, and the state that isn't a table."""


def start(module: Any, *words: Any) -> Any:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{module}", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: Any) -> None:
    process.stdin.close()
    process.stdout.close()
    process.kill()
    process.wait(10)


@pytest.fixture
def engine(tmp_path: Any) -> Any:
    processes = []

    def begin(iterations: Any, pause_s: Any, *more: Any) -> Any:
        processes.append(start("engine_process", tmp_path / "rings", iterations, pause_s, 1, *more))
        ring = processes[-1].stdout.readline().strip()
        os.link(ring, tmp_path / "kept")  # its bytes, after it is retired
        return processes[-1], ring

    yield begin
    for process in processes:
        end(process)


def exported(folder: Any, path: Any) -> Any:
    """The content of all tables after one exporter that nobody killed."""
    store = Store.open(path)
    pipeline = Pipeline(folder, store, options=Options(slo=DEMO_SLO))
    pipeline.start()
    deadline = time.monotonic() + 30
    while list_rings(folder):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pipeline.stop()
    return content(store)


def content(store: Any) -> Any:
    found = {}
    for table in tables.table_names():
        hidden = ["batch_id", *WALL_CLOCK.get(table, [])]
        shown = ", ".join(c for c in tables.columns(table) if c not in hidden)
        found[table] = store.rows(f"SELECT {shown} FROM {table} ORDER BY ALL")
    store.close()
    return found


def commits(path: Any) -> Any:
    store = Store.open(path)
    batch = store.batch
    store.close()
    return batch


def test_killed_exporters_leave_the_tables_of_one_that_lived(tmp_path: Any, engine: Any) -> None:
    chance = random.Random(KILLS)
    writer, ring = engine(STEPS * KILLS, 0.003)
    nursery = start("exporter_process", tmp_path / "rings", tmp_path / "killed.duckdb")
    opened = []
    for _ in range(KILLS):
        nursery.stdin.write("go\n")
        nursery.stdin.flush()
        pid, took = nursery.stdout.readline().split()
        opened.append(float(took))
        time.sleep(chance.uniform(0.1, 0.8))  # until some point of its work
        os.kill(int(pid), signal.SIGKILL)
        assert nursery.stdout.readline() == "ended\n"
    writer.wait(60)
    end(nursery)
    assert commits(tmp_path / "killed.duckdb") > KILLS
    killed = exported(tmp_path / "rings", tmp_path / "killed.duckdb")
    os.mkdir(tmp_path / "again")
    shutil.copy(tmp_path / "kept", tmp_path / "again" / os.path.basename(ring))
    lived = exported(tmp_path / "again", tmp_path / "lived.duckdb")
    assert len(lived["iterations"]) == STEPS * KILLS
    for table, rows in lived.items():
        assert killed[table] == rows, table
    assert max(opened) < 1.0  # CPU seconds: other load on the machine doesn't count


def test_a_killed_engine_leaves_all_up_to_its_last_decision(tmp_path: Any, engine: Any) -> None:
    writer, _ = engine(300, 0.0, "stay")
    assert writer.stdout.readline() == "written\n"
    writer.kill()
    writer.wait(10)
    seen = exported(tmp_path / "rings", tmp_path / "s.duckdb")
    columns = [c for c in tables.columns("engines") if c != "batch_id"]
    (row,) = seen["engines"]
    assert dict(zip(columns, row, strict=True))["state"] == "dead"
    columns = list(tables.columns("iterations"))
    at = columns.index("iteration_id"), columns.index("completed_at_ns")
    ended = {row[at[0]]: row[at[1]] for row in seen["iterations"] + seen["iterations_open"]}
    assert len(ended) == 301
    assert [iteration for iteration, when in ended.items() if when is None] == [301]
    assert [mark[0] for mark in seen["marks"]] == ["attach", "dead", "slo"][: len(seen["marks"])]
