"""What the exporter sustains (P3), how fresh it is (P4), its scrape (P6) and its disk (P7).

The real `batchscope serve` in a process of its own, fed by synthetic engines in theirs. Rates are
per CPU second of the exporter (one core), so that other load on the machine doesn't count.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import duckdb

from batchscope.exporter.retention import Bounds, retain
from batchscope.exporter.store import Store

TICKS = os.sysconf("SC_CLK_TCK")
CASES: tuple[tuple[str, int, float, int, int], ...] = (
    ("P3 steady: 256 members, churn in 2 %", 1, 10_000, 1, 50),
    ("P3 changing: 5 join and 5 leave each time", 1, 5_000, 5, 1),
    ("P3 fleet: 8 engines x 100 it/s", 8, 100, 1, 50),
)
HEAVY = "run_totals"
"""A query over everything, asked without pause while freshness is measured."""


@dataclass
class Exporter:
    """A running `batchscope serve`."""

    process: subprocess.Popen[str]
    url: str
    folder: Path
    store: Path
    engines: list[subprocess.Popen[str]] = field(default_factory=list)

    def cpu_s(self) -> float:
        """CPU seconds so far, all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def peak_mib(self) -> float:
        """Largest resident set so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def get(self, path: str, accept: str = "application/json") -> bytes:
        """A body."""
        asked = urllib.request.Request(self.url + path, headers={"Accept": accept})
        with urllib.request.urlopen(asked, timeout=30) as reply:
            return bytes(reply.read())

    def column(self, query: str, name: str) -> list[Any]:
        """One column of a named query."""
        return list(json.loads(self.get(f"/api/v1/query/{query}"))["columns"][name])

    def counter(self, name: str) -> float:
        """Sum of a family over its labels."""
        lines = self.get("/metrics", "text/plain").decode().splitlines()
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(f"batchscope_{name}"))


@contextmanager
def exporter() -> Iterator[Exporter]:
    """Start one, and its engines' end with it."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
        tempfile.TemporaryDirectory() as disk,
    ):
        port, store = _free_port(), Path(disk) / "s.duckdb"
        flags = ["--dir", rings, "--store", str(store), "--listen", f"127.0.0.1:{port}"]
        command = [sys.executable, "-m", "batchscope.exporter.cli", "serve", "--log", "error"]
        slo = ["--slo", "ttft<=2s,tbt_p99<=200ms"]
        process = subprocess.Popen([*command, *flags, *slo], text=True)
        running = Exporter(process, f"http://127.0.0.1:{port}", Path(rings), store)
        try:
            _until(lambda: _answers(running), 30)
            yield running
        finally:
            for child in (*running.engines, process):
                child.terminate()
                child.wait(30)


def engine(at: Exporter, name: str, rate: float, seconds: float, churn: int, every: int) -> None:
    """Add a synthetic engine that waits for `begin`."""
    words = [at.folder, name, rate, seconds, churn, every]
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.synthetic", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    _read(child)
    at.engines.append(child)


def begin(at: Exporter) -> None:
    """Let all engines run."""
    for child in at.engines:
        _say(child)


def sustained(case: tuple[str, int, float, int, int], seconds: float) -> dict[str, Any]:
    """Feed one case, wait until all is stored, count CPU, memory and loss."""
    _, engines, rate, churn, every = case
    with exporter() as at:
        for i in range(engines):
            engine(at, f"bench-{i}", rate, seconds, churn, every)
        scraper = _repeat(lambda: at.get("/metrics", "text/plain"), 1.0)
        before, began = at.cpu_s(), time.monotonic()
        begin(at)
        told = [json.loads(_read(child)) for child in at.engines]
        written = sum(t["iterations"] for t in told)
        _until(lambda: _seen(at) >= written, 60)
        caught_up_s = time.monotonic() - began
        _until(lambda: at.counter("store_queue_bytes") == 0, 30)
        cpu_s = at.cpu_s() - before
        scraper.set()
        return {
            "iterations_per_s": round(written / cpu_s),
            "member_steps_per_s": round(sum(t["member_steps"] for t in told) / cpu_s),
            "cores": round(cpu_s / caught_up_s, 3),
            "behind_s": round(caught_up_s - max(t["s"] for t in told), 2),
            "lost_records": int(at.counter("lost_records_total")),
            "peak_rss_mib": round(at.peak_mib()),
            "disk": _disk(at) if every == 50 and engines == 1 else None,
        }


def freshness(seconds: float) -> dict[str, Any]:
    """Age of the newest completion as /metrics and the API tell it, beside a heavy query."""
    with exporter() as at:
        for i in range(8):
            engine(at, f"bench-{i}", 100, seconds + 4, 1, 50)
        begin(at)
        time.sleep(2)
        heavy = _repeat(lambda: at.get(f"/api/v1/query/{HEAVY}"), 0.0)
        ages: dict[str, list[float]] = {"metrics": [], "api": []}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ages["metrics"].append(time.time() - _newest_scraped(at))
            ages["api"].append(time.time() - max(at.column("newest", "unix_ns")) / 1e9)
            time.sleep(0.05)
        heavy.set()
        return {name: _spread(values) for name, values in ages.items()} | {"scrape": _scrape(at)}


def run(seconds: float = 15.0) -> dict[str, Any]:
    """Everything, as one dict; prints a table."""
    found: dict[str, Any] = {case[0]: sustained(case, seconds) for case in CASES}
    found["P4 freshness in s, 8 engines"] = freshness(seconds)
    for name, figures in found.items():
        print(name)
        for key, value in figures.items():
            print(f"    {key:20} {value}")
    return found


def _scrape(at: Exporter) -> dict[str, Any]:
    taken, body = [], b""
    for _ in range(50):
        began = time.perf_counter()
        body = at.get("/metrics", "text/plain")
        taken.append((time.perf_counter() - began) * 1e3)
    return {"p95_ms": round(sorted(taken)[47], 1), "kB": round(len(body) / 1e3, 1)}


def _seen(at: Exporter) -> float:
    return at.counter("iterations_total") + at.counter("lost_iterations_total")


def _newest_scraped(at: Exporter) -> float:
    family = "batchscope_last_completion_timestamp_seconds"
    lines = at.get("/metrics", "text/plain").decode().splitlines()
    return max(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith(family))


def _disk(at: Exporter) -> dict[str, float]:
    """Bytes per member step and per iteration once the store is closed and checkpointed."""
    at.process.terminate()
    at.process.wait(30)
    with duckdb.connect(str(at.store)) as store, tempfile.TemporaryDirectory() as other:
        (steps,) = store.execute("SELECT sum(n_iterations) FROM all_runs").fetchone() or (0,)
        (iterations,) = store.execute("SELECT count(*) FROM iterations").fetchone() or (0,)
        (runs,) = store.execute("SELECT count(*) FROM runs").fetchone() or (0,)
        sizes = {t: _alone(store, t, Path(other)) for t in ("runs", "iterations")}
    return {
        "bytes_per_member_step": round(sizes["runs"] / steps, 4),
        "bytes_per_iteration": round(sizes["iterations"] / iterations, 1),
        "steps_per_run": round(steps / max(1, runs), 1),
        **_kept(at.store),
    }


def _kept(path: Path) -> dict[str, float]:
    """Used bytes before and after retention to half of them: whole row groups, 122,880 rows."""
    store = Store.open(path)
    before = store.used_bytes()
    retain(store, Bounds(max_bytes=before // 2), now_unix_ns=time.time_ns())
    after = store.used_bytes()
    store.close()
    return {"used_mb": round(before / 1e6, 1), "kept_mb_of_half": round(after / 1e6, 1)}


def _alone(store: duckdb.DuckDBPyConnection, table: str, folder: Path) -> int:
    """Used bytes of one table in a file of its own."""
    path = folder / f"{table}.duckdb"
    store.execute(f"ATTACH '{path}' AS alone")
    store.execute(f"CREATE TABLE alone.{table} AS SELECT * FROM {table}")
    store.execute("CHECKPOINT alone")
    sql = (
        "SELECT used_blocks * block_size FROM pragma_database_size() WHERE database_name = 'alone'"
    )
    (used,) = store.execute(sql).fetchone() or (0,)
    store.execute("DETACH alone")
    return int(used)


def _spread(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values, n=100)
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "n": len(values)}


def _repeat(work: Callable[[], object], pause_s: float) -> threading.Event:
    """Do something over and over on a thread until the event is set."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(pause_s):
            work()

    threading.Thread(target=loop, daemon=True).start()
    return done


def _answers(at: Exporter) -> bool:
    try:
        return bool(at.get("/readyz"))
    except OSError:
        return False


def _until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def _say(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0)
