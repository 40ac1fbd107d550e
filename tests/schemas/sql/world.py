"""A handful of rows to ask every question of sql/queries of, small enough to check by hand.

Times are in ms after T0. Engine "a" has two lives: ring 1 (iterations 1-6, 6 in flight; records
were lost between 3 and 4) and ring 2, an older life that died. Engine "b" (ring 3) must never
show up in an answer about "a".
"""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from batchscope.exporter.queries import named
from batchscope.exporter.tables import columns, ddl, statements

T0 = 1_700_000_000_000_000_000
MS = 1_000_000
BIG_RING = 2**63 + 1
"""Ring 1's id does not fit a signed integer, as half of all real ones."""

Row = dict[str, Any]


def at(ms: float) -> int:
    """Unix ns of a time of this world."""
    return T0 + int(ms * MS)


def iteration(number: int, end: float, took: float | None, **more: Any) -> Row:
    """A completed iteration of ring 1 that took `took` ms until `end`."""
    ns = None if took is None else int(took * MS)
    return {
        "ring_id": BIG_RING, "iteration_id": number, "completion_index": number,
        "unix_ns": at(end), "scheduled_at_ns": int(end * MS) - (ns or 10 * MS) + MS,
        "completed_at_ns": int(end * MS), "schedule_ns": 100_000, "interval_ns": ns,
        "host_ns": ns and MS, "exec_ns": ns and ns - MS, "idle_ns": 0, "phase": "decode",
        "budget_tokens": 512, "prefill_tokens": 0, "decode_tokens": 2, "draft_tokens": 0,
        "output_tokens": 2, "prefill_members": 0, "decode_members": 2, "decode_gap_members": 2,
        "running": 2, "waiting": 0, "kv_total_blocks": 100, "kv_used_blocks": 40,
        "kv_evictable_blocks": 10, "observer_ns": 12_000, "dummy": False,
    } | more  # fmt: skip


ITERATIONS = [
    iteration(1, 100, None, phase="prefill", prefill_tokens=512, decode_tokens=0, output_tokens=0,
              prefill_members=1, decode_members=0, decode_gap_members=0, running=1),
    iteration(2, 140, 40, phase="mixed", prefill_tokens=511, decode_tokens=1, output_tokens=2,
              prefill_members=1, decode_members=1, decode_gap_members=0, waiting=3,
              admission_stop="token_budget", head_serial=4, kv_used_blocks=90,
              kv_evictable_blocks=0),
    iteration(3, 160, 20, waiting=2, admission_stop="max_requests"),
    iteration(4, 300, None, waiting=2, admission_stop="max_requests", decode_gap_members=0),
    iteration(5, 330, 30, output_tokens=4, decode_gap_members=1, observer_ns=None),
    iteration(1, 120, 20, ring_id=2, unix_ns=at(-5000)),
    iteration(1, 150, 20, ring_id=3, decode_tokens=77),
]  # fmt: skip
OPEN = [
    iteration(6, 340, None, completed_at_ns=None, completion_index=None, output_tokens=None,
              decode_gap_members=None, observer_ns=None, waiting=1,
              admission_stop="kv_blocks")
]  # fmt: skip


def request(serial: int, **more: Any) -> Row:
    """A request of ring 1."""
    return {
        "ring_id": BIG_RING, "serial": serial, "request_key": f"{serial:016x}",
        "prompt_tokens": 1000, "prefill_tokens": 1000, "decode_tokens": 2, "output_tokens": 3,
        "cached_on_resume_tokens": 0, "recomputed_tokens": 0, "steps": 3, "preemptions": 0,
        "lost_tokens": 0, "deferrals": 0, "broken": False,
    } | more  # fmt: skip


REQUESTS = [
    request(1, arrived_unix_ns=at(90), finished_at_ns=160 * MS, unix_ns=at(160), ttft_ns=50 * MS,
            finish_reason="stop", verdict="met", on_time_tokens=3),
    request(2, arrived_unix_ns=at(95), finished_at_ns=330 * MS, unix_ns=at(330), ttft_ns=45 * MS,
            finish_reason="abort", verdict="aborted", on_time_tokens=1, output_tokens=5,
            preemptions=1),
    # alive when its adapter left: nobody saw its end
    request(5, arrived_unix_ns=at(40), finished_at_ns=335 * MS, unix_ns=at(335), broken=True,
            finish_reason="unknown", verdict="undetermined", on_time_tokens=2),
    request(3, arrived_unix_ns=at(-9000), finished_at_ns=MS, unix_ns=at(-8000), ttft_ns=MS,
            finish_reason="stop", verdict="missed", on_time_tokens=0),
]  # fmt: skip
LIVE = [request(4, arrived_unix_ns=at(135), unix_ns=at(335), ttft_ns=195 * MS, on_time_tokens=1)]


def run(serial: int, first: int, count: int, **more: Any) -> Row:
    """Steps of a request of ring 1."""
    return {
        "ring_id": BIG_RING, "serial": serial, "first_iteration": first, "n_iterations": count,
        "stride": 1, "phase": "decode", "recompute": False, "tokens_each": 1, "emitted_each": 1,
        "context_first": 1000, "unix_ns": at(160),
    } | more  # fmt: skip


RUNS = [
    run(
        1, 1, 1, phase="prefill", tokens_each=512, emitted_each=0, context_first=0, unix_ns=at(100)
    ),
    run(1, 2, 1, phase="prefill", tokens_each=488, context_first=512, unix_ns=at(140)),
    run(1, 3, 1),
    run(2, 2, 1, phase="prefill", tokens_each=23, context_first=0, unix_ns=at(140)),
    run(2, 3, 3, tokens_each=2, emitted_each=None, emitted=[1, 1, 3], unix_ns=at(330)),
]
RUNS_OPEN = [run(4, 4, 3, unix_ns=at(340))]

TABLES: dict[str, list[Row]] = {
    "engines": [
        {"ring_id": ring, "ring_uuid": f"{ring:032x}", "engine": engine, "kind": "mini",
         "version": "1", "model_name": "m", "role": "both", "dp_rank": 0, "config_hash": "h",
         "provides": "{}", "adapter_version": "1", "attached_unix_ns": at(attached),
         "ended_unix_ns": ended, "state": state}
        for ring, engine, attached, ended, state in (
            (BIG_RING, "a", 80, None, "live"), (2, "a", -9500, at(-4000), "dead"),
            (3, "b", 0, None, "live"))
    ],
    "configs": [{"config_hash": "h", "config": '{"max_num_seqs":2}'}],
    "iterations": ITERATIONS,
    "iterations_open": OPEN,
    "requests": REQUESTS,
    "requests_open": LIVE,
    "runs": RUNS,
    "runs_open": RUNS_OPEN,
    "gaps": [
        {"ring_id": BIG_RING, "serial": 2, "iteration_id": 5, "from_iteration": 3,
         "gap_ns": 170 * MS, "tokens": 3, "preempted": False, "unix_ns": at(330)}],
    "deferrals": [
        {"ring_id": BIG_RING, "iteration_id": number, "unix_ns": at(when), "reason": reason,
         "position": position, "requests": requests}
        for number, when, reason, position, requests in (
            (2, 101, "token_budget", "global", 3), (3, 141, "max_requests", "global", 2),
            (4, 290, "kv_blocks", "head", 1), (4, 290, "kv_blocks", "behind", 1))],
    "preemptions": [
        {"ring_id": BIG_RING, "serial": 2, "iteration_id": 4, "at_ns": 290 * MS,
         "unix_ns": at(290), "lost_tokens": 640, "mode": "recompute", "reason": "kv_blocks"}],
    "losses": [
        {"ring_id": BIG_RING, "unix_ns": at(170), "first_seq": 9, "records": 12, "iterations": 5,
         "rejected": 1}],
    "marks": [
        {"unix_ns": at(200), "kind": "user", "engine": None, "text": "deploy"},
        {"unix_ns": at(210), "kind": "attach", "engine": "b", "text": "not ours"}],
    "audit": [
        {"ring_id": BIG_RING, "law": "tokens", "checks": 7, "violations": 0},
        {"ring_id": 2, "law": "kv", "checks": 3, "violations": 1, "example": "used 11 of 10"}],
    "notices": [
        {"ring_id": BIG_RING, "at_ns": 1, "unix_ns": at(1), "kind": "info", "count": 1,
         "text": "hello"},
        {"ring_id": BIG_RING, "at_ns": 2, "unix_ns": at(2), "kind": "fault", "count": 1,
         "text": "a seam is missing"},
        {"ring_id": 2, "at_ns": 3, "unix_ns": at(3), "kind": "detached", "count": 1,
         "text": "asked to leave"}],
    "slo": [
        {"name": "demo", "version": version, "targets": f"tbt_p99<={bound}ms,ttft<=2000ms",
         "since_unix_ns": at(since)} for version, bound, since in ((1, 300, 0), (2, 200, 60))],
}  # fmt: skip


def database(tables: dict[str, list[Row]] = TABLES) -> duckdb.DuckDBPyConnection:
    """An in-memory store with these rows."""
    db = duckdb.connect()
    for statement in statements():
        db.execute(statement)
    for table, rows in tables.items():
        insert(db, table, rows)
    return db


def insert(db: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    """Rows into a table; columns they don't name are NULL."""
    assert all(name in columns(table) for row in rows for name in row), ddl(table)
    names = dict.fromkeys(name for row in rows for name in row)
    kinds = {"ring_id": pa.uint64()}
    arrays = {n: pa.array([row.get(n) for row in rows], kinds.get(n)) for n in names}
    db.register("batch", pa.table(arrays | {"batch_id": pa.array([1] * len(rows))}))
    db.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")
    db.unregister("batch")


def ask(db: duckdb.DuckDBPyConnection, name: str, **params: Any) -> pa.Table:
    """A named query with parameters as they arrive over HTTP."""
    query = named(name)
    bound = query.bind({key: str(value) for key, value in params.items()})
    table: pa.Table = db.sql(query.sql, params=bound).to_arrow_table()
    return table
