"""`batchscope serve` as a process: starts, answers, refuses in one sentence, ends when told."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import Any

import duckdb
import pytest
from tests.support.engine_process import Load, hello
from tests.support.served import until

from batchscope.exporter.errors import StoreError
from batchscope.exporter.store import Store
from batchscope.schemas.ring import RingWriter


def command(*words: Any) -> Any:
    return [sys.executable, "-m", "batchscope.exporter.cli", *map(str, words)]


@contextmanager
def serving(tmp_path: Any, *words: Any, store: Any = "s.duckdb", folder: Any = "rings") -> Any:
    """A server and its URL, read from the line it logs."""
    flags = ["--listen", "127.0.0.1:0", "--store", tmp_path / store, "--dir", tmp_path / folder]
    env = {**os.environ, "BATCHSCOPE_TOKEN": ""}
    child = subprocess.Popen(
        command("serve", *flags, *words), stderr=subprocess.PIPE, text=True, env=env
    )
    assert child.stderr is not None
    try:
        first = next((line for line in child.stderr if "listening on" in line), "")
        assert first, "it did not start"
        yield child, first.split("listening on ")[1].split(",")[0]
    finally:
        child.kill()
        child.wait(10)
        child.stderr.close()


def get(url: Any) -> Any:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read()


def ended_by(child: Any, number: Any) -> Any:
    began = time.monotonic()
    child.send_signal(number)
    return child.wait(15), time.monotonic() - began


def refused(*words: Any) -> Any:
    done = subprocess.run(
        command("serve", "--listen", "127.0.0.1:0", *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "BATCHSCOPE_TOKEN": ""},
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("batchscope: ")]
    assert "Traceback" not in done.stderr
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_with_a_client_on_the_line(tmp_path: Any, number: Any) -> None:
    with serving(tmp_path) as (child, url):
        live = urllib.request.urlopen(f"{url}/api/v1/live", timeout=10)
        assert live.readline().startswith(b"data: ")
        code, took = ended_by(child, number)
        live.close()
    assert code == 0
    assert took < 5
    Store.open(tmp_path / "s.duckdb").close()


def test_what_was_written_just_before_the_end_is_in_the_store(tmp_path: Any) -> None:
    with serving(tmp_path) as (child, _):
        writer = RingWriter(tmp_path / "rings", hello(1))
        while not writer.grow():
            pass
        load = Load(writer, 1)
        for _ in range(50):
            load.step()
        ended_by(child, signal.SIGTERM)
        writer.close(unlink=True)
    store = Store.open(tmp_path / "s.duckdb")
    seen = store.rows("SELECT count(*) FROM all_iterations WHERE completed_at_ns IS NOT NULL")
    store.close()
    assert seen == [(50,)]


def test_metrics_and_queries_agree_on_a_running_engine(tmp_path: Any) -> None:
    with serving(tmp_path) as (_, url):
        writer = RingWriter(tmp_path / "rings", hello(1))
        while not writer.grow():
            pass
        load = Load(writer, 1)
        for _ in range(60):
            load.step()
        until(lambda: newest(url) == 60)
        lines = get(f"{url}/metrics").decode().splitlines()
        writer.close(unlink=True)
    counts = [line for line in lines if line.startswith("batchscope_iterations_total{")]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counts) == 60
    assert 'engine="synthetic-1"' in counts[0]


def newest(url: Any) -> Any:
    return max(json.loads(get(f"{url}/api/v1/query/newest"))["columns"]["iteration_id"], default=0)


def test_a_second_exporter_on_the_store_or_on_the_folder_is_refused(tmp_path: Any) -> None:
    with serving(tmp_path) as (child, _):
        code, said = refused("--store", tmp_path / "s.duckdb", "--dir", tmp_path / "other")
        assert code == 1
        assert f"pid {child.pid}" in said
        code, said = refused("--store", tmp_path / "t.duckdb", "--dir", tmp_path / "rings")
        assert code == 2
        assert "another exporter reads" in said
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "t.duckdb").exists()


def test_a_folder_for_rings_that_is_missing_is_made_for_us_alone(tmp_path: Any) -> None:
    with serving(tmp_path, folder="deep/rings"):
        assert (tmp_path / "deep/rings").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("folder", ["file/rings", "file"])
def test_a_folder_that_cannot_be_is_refused_and_nothing_is_left(tmp_path: Any, folder: Any) -> None:
    (tmp_path / "file").touch()
    code, said = refused("--store", tmp_path / "new/s.duckdb", "--dir", tmp_path / folder)
    assert (code, str(tmp_path / folder) in said) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not os.path.isdir("/proc/sys/kernel"), reason="needs a folder none may write")
def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Any) -> None:
    code, said = refused("--store", tmp_path / "s.duckdb", "--dir", "/proc/sys/kernel")
    assert code == 2
    assert "can't use /proc/sys/kernel for rings" in said
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_opened_leaves_no_folder(tmp_path: Any) -> None:
    (tmp_path / "s.duckdb").write_bytes(b"no store" * 1000)
    code, said = refused("--store", tmp_path / "s.duckdb", "--dir", tmp_path / "rings")
    assert (code, "is not a DuckDB file" in said) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["s.duckdb"]


def test_a_newer_store_is_refused(tmp_path: Any) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    with duckdb.connect(str(tmp_path / "s.duckdb")) as raw:
        raw.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    code, said = refused("--store", tmp_path / "s.duckdb", "--dir", tmp_path / "rings")
    assert code == 1
    assert "schema version 99" in said


def test_a_store_is_read_after_the_fact_without_any_ring(tmp_path: Any) -> None:
    Store.open(tmp_path / "s.duckdb").close()
    with serving(tmp_path, "--read-only", folder="nowhere") as (_, url):
        assert json.loads(get(f"{url}/api/v1/query/engines"))["columns"]["engine"] == []
        assert json.loads(get(f"{url}/readyz")) == {"status": "ok"}
    assert not (tmp_path / "nowhere").exists()


def test_the_pages_of_a_store_file_bring_their_own_exporter(tmp_path: Any) -> None:
    pytest.importorskip("streamlit")
    Store.open(tmp_path / "s.duckdb").close()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = ("--store", tmp_path / "s.duckdb", "--listen", f"127.0.0.1:{port}")
    log = tmp_path / "log"
    with open(log, "w") as out:
        child = subprocess.Popen(command("dashboard", *words), stdout=out, stderr=out)
    try:
        until(lambda: healthy(port), seconds=30)
        assert ended_by(child, signal.SIGTERM)[1] < 15
    finally:
        child.kill()
        child.wait(10)
    until(lambda: free(tmp_path / "s.duckdb"))  # its exporter is gone, too


def healthy(port: Any) -> Any:
    try:
        return get(f"http://127.0.0.1:{port}/_stcore/health") == b"ok"
    except OSError:
        return False


def free(path: Any) -> Any:
    try:
        Store.open(path).close()
    except StoreError:
        return False
    return True
