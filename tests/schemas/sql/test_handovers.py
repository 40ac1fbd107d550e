"""request_handovers over rows made by hand: pairs, hops that failed, ids that are used again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from tests.schemas.sql.world import MS, Row, ask, at, database, insert

PREFILL, DECODE, OTHER = 2**63 + 7, 8, 9


def engine(ring: int, role: str) -> Row:
    """A ring of that role."""
    return {
        "ring_id": ring, "ring_uuid": f"{ring:032x}", "engine": f"x-{role}", "kind": "mini",
        "role": role, "provides": "{}", "adapter_version": "1", "attached_unix_ns": at(0),
        "state": "live",
    }  # fmt: skip


def part(ring: int, serial: int, key: str, arrived: float, **more: Any) -> Row:
    """What one engine knows of a request; its times in ms."""
    times = {name: None if ms is None else round(ms * MS) for name, ms in more.items()}
    return {
        "ring_id": ring, "serial": serial, "request_key": key, "prompt_tokens": 40,
        "arrived_at_ns": round(arrived * MS), "arrived_unix_ns": at(arrived), "unix_ns": at(999),
        "prefill_tokens": 0, "decode_tokens": 0, "output_tokens": 1 if ring == PREFILL else 9,
        "cached_on_resume_tokens": 0, "recomputed_tokens": 0, "steps": 1, "preemptions": 0,
        "lost_tokens": 0, "deferrals": 0, "broken": False, "finish_reason": "length",
    } | times  # fmt: skip


def hop(ring: int, serial: int, start: float, end: float, **more: Any) -> Row:
    """A transfer between two instants in ms."""
    return {
        "ring_id": ring, "serial": serial, "start_ns": round(start * MS), "end_ns": round(end * MS),
        "unix_ns": at(end), "failed": False, "direction": "out" if ring == PREFILL else "in",
    } | more  # fmt: skip


@pytest.fixture
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with database({"engines": [engine(PREFILL, "prefill"), engine(DECODE, "decode"),
                               engine(OTHER, "both")]}) as made:  # fmt: skip
        yield made


def handovers(db: duckdb.DuckDBPyConnection, *keys: str) -> list[dict[str, Any]]:
    return ask(db, "request_handovers", keys=",".join(keys)).to_pylist()


def test_the_parts_of_a_pair_sum_to_the_whole(db: duckdb.DuckDBPyConnection) -> None:
    insert(db, "requests", [
        part(PREFILL, 1, "k", 100, queue_ns=5, ttft_ns=30, e2e_ns=30),
        part(DECODE, 4, "k", 137, queue_ns=2, ttft_ns=12, e2e_ns=92, tbt_p50_ns=10),
        part(OTHER, 1, "k", 120, queue_ns=1, ttft_ns=2, e2e_ns=3),
    ])  # fmt: skip
    insert(db, "transfers", [
        hop(PREFILL, 1, 131, 138, handshake_ns=MS, wait_ns=4 * MS, bytes=4096, blocks=3),
        hop(DECODE, 4, 131.5, 137, wait_ns=4 * MS, bytes=4096, blocks=3),
        hop(OTHER, 1, 1, 2, direction="out"),
    ])  # fmt: skip
    (one,) = handovers(db, "k")
    parts = [
        one[f"{name}_ns"] / MS for name in ("queue", "prefill", "hop", "decode_queue", "decode")
    ]
    assert parts == [5, 25, 7, 2, 90]
    assert sum(parts) * MS == one["e2e_ns"] == 129 * MS
    assert (one["first_gap_ns"], one["output_tokens"]) == (19 * MS, 10)
    spent = [one[f"{name}_ns"] / MS for name in ("offer", "handshake", "wait", "copy")]
    assert spent == [1, 1, 4, 2]
    assert one["clock_error_ns"] == MS, "the answer took 1 ms, the offer half of that"
    assert (one["prefill_ring_id"], one["decode_ring_id"]) == (PREFILL, DECODE)


def test_a_decode_engine_that_makes_the_first_token_once_more_gives_the_client_its_own() -> None:
    vllm = [
        engine(PREFILL, "prefill") | {"kind": "vllm"},
        engine(DECODE, "decode") | {"kind": "vllm"},
    ]
    with database({"engines": vllm}) as db:
        insert(db, "requests", [
            part(PREFILL, 1, "k", 100, queue_ns=5, ttft_ns=30, e2e_ns=30),
            part(DECODE, 4, "k", 137, queue_ns=2, ttft_ns=12, e2e_ns=92),
        ])  # fmt: skip
        (one,) = handovers(db, "k")
    assert (one["output_tokens"], one["ttft_ns"], one["first_gap_ns"]) == (9, 49 * MS, None)
    parts = ("queue", "prefill", "hop", "decode_queue", "decode")
    assert sum(one[f"{name}_ns"] for name in parts) == one["e2e_ns"] == 129 * MS


def test_a_hop_that_failed_leaves_the_rest_unknown(db: duckdb.DuckDBPyConnection) -> None:
    insert(db, "requests", [part(PREFILL, 1, "k", 100, queue_ns=5, ttft_ns=30)])
    insert(db, "transfers", [hop(PREFILL, 1, 131, 138, failed=True)])
    (one,) = handovers(db, "k")
    assert (one["finish_reason"], one["failed"], one["output_tokens"]) == ("error", True, 1)
    unknown = ("hop_ns", "decode_queue_ns", "decode_ns", "e2e_ns", "copy_ns", "clock_error_ns")
    assert [one[name] for name in unknown] == [None] * 6


def test_an_id_that_is_used_again_is_another_handover(db: duckdb.DuckDBPyConnection) -> None:
    insert(db, "requests", [
        part(PREFILL, 1, "k", 100, queue_ns=5, ttft_ns=30),
        part(PREFILL, 2, "k", 300, queue_ns=1, ttft_ns=30),
        part(DECODE, 1, "k", 340, queue_ns=0, ttft_ns=10, e2e_ns=50),
        part(DECODE, 2, "other", 135, queue_ns=0, ttft_ns=10, e2e_ns=50),
    ])  # fmt: skip
    insert(db, "transfers", [hop(PREFILL, 1, 131, 138, failed=True)])
    told = handovers(db, "k")
    assert [(one["prefill_serial"], one["decode_serial"]) for one in told] == [(2, 1), (1, None)]
    assert handovers(db, "nobody") == []


def test_one_token_needs_no_second_engine(db: duckdb.DuckDBPyConnection) -> None:
    insert(db, "requests", [part(PREFILL, 1, "k", 100, queue_ns=5, ttft_ns=30)])
    (one,) = handovers(db, "k")
    assert (one["finish_reason"], one["failed"], one["decode_serial"]) == ("length", None, None)
