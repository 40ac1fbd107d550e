"""A request over two engines, from their two rings to one answer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.halves import Client, at_rest, engine, running, until
from tests.support.commands import as_json, base
from tests.support.served import Served

from batchscope.adapters import mini
from batchscope.exporter.cli import handover

PROMPTS = [[7] * 48 + [i] * (5 * i + 1) for i in range(8)]
TOKENS = 12


class World(NamedTuple):
    """An exporter that has seen a split serve clients; `asked_ns` is when each asked."""

    served: Served
    clients: list[Client]
    asked_ns: list[int]
    page_bytes: int

    def rows(self, query: str, **params: str) -> list[dict[str, Any]]:
        """A named query's answer."""
        columns = self.served.http.get(f"/api/v1/query/{query}", params=params).json()["columns"]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def about(self, name: str) -> dict[str, Any]:
        """All that is told of a request by its id."""
        answer: dict[str, Any] = self.served.http.get(f"/api/v1/request/{name}").json()
        return answer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("split")
    with Served(folder) as served:
        made, clients, asked_ns = serve(served.rings)
        world = World(served, clients, asked_ns, made)
        for client in clients:
            until(lambda name=client.name: len(finished(world, name)) == 2)  # type: ignore[misc]
        yield world


def serve(rings: Path) -> tuple[int, list[Client], list[int]]:
    """Have two watched engines serve all; (page bytes, clients, when they asked)."""
    shape: dict[str, Any] = {"num_blocks": 24, "max_model_len": 128, "max_num_batched_tokens": 64}
    halves = engine("torch", role="prefill", **shape), engine("torch", role="decode", **shape)
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(rings), "BATCHSCOPE_OVERHEAD": "0"}
    handles = [mini.attach(one, env | {"BATCHSCOPE_RING_BYTES": "1048576"}) for one in halves]
    asked_ns = []
    with running(*halves) as pair:
        clients = []
        for i, prompt in enumerate(PROMPTS):
            asked_ns.append(time.monotonic_ns())
            clients.append(Client(pair.prefill, f"r{i}", prompt, TOKENS))
        for client in clients:
            client.wait()
        until(lambda: at_rest(pair))
    for handle in handles:
        handle.detach()
    return halves[0].runner.page_bytes, clients, asked_ns  # type: ignore[attr-defined]


def finished(world: World, name: str) -> list[dict[str, Any]]:
    told = world.about(name).get("requests", [])
    return [one for one in told if one["finished_at_ns"] is not None]


def roles(world: World) -> dict[int, str]:
    told = world.served.http.get("/api/v1/engines").json()["engines"]
    return {one["ring_id"]: one["role"] for one in told}


def test_each_engine_tells_its_own_part_under_a_name_and_role_of_its_own(world: World) -> None:
    told = world.served.http.get("/api/v1/engines").json()["engines"]
    assert {(one["engine"], one["role"]) for one in told} == {
        ("mini-prefill", "prefill"),
        ("mini-decode", "decode"),
    }
    for client, prompt in zip(world.clients, PROMPTS, strict=True):
        parts = {roles(world)[one["ring_id"]]: one for one in finished(world, client.name)}
        assert parts["prefill"]["request_key"] == parts["decode"]["request_key"]
        emitted = [parts[role]["output_tokens"] for role in ("prefill", "decode")]
        assert emitted == [1, TOKENS - 1]
        assert parts["prefill"]["prompt_tokens"] == parts["decode"]["prompt_tokens"] == len(prompt)


def test_tokens_and_bytes_are_conserved_over_both_rings(world: World) -> None:
    heard = sum(len(client.tokens) for client in world.clients)
    told = [one for client in world.clients for one in finished(world, client.name)]
    assert sum(one["output_tokens"] for one in told) == heard == len(PROMPTS) * TOKENS
    hops = [hop | {"who": one["serial"]} for one in told for hop in transfers(world, one)]
    for direction in ("in", "out"):
        mine = [hop for hop in hops if hop["direction"] == direction]
        assert len(mine) == len(PROMPTS)
        assert all(hop["bytes"] == hop["blocks"] * world.page_bytes for hop in mine)
    total = {d: sum(h["bytes"] for h in hops if h["direction"] == d) for d in ("in", "out")}
    pages = sum(-(-len(prompt) // 16) for prompt in PROMPTS)
    assert total["in"] == total["out"]
    assert 0 < total["in"] < pages * world.page_bytes, "what both had did not travel twice"


def transfers(world: World, one: dict[str, Any]) -> list[dict[str, Any]]:
    which = {"ring_id": str(one["ring_id"]), "serial": str(one["serial"])}
    return world.rows("request_transfers", **which)


def test_no_law_of_the_audit_is_broken_on_either_side(world: World) -> None:
    counted = [view.totals.counters for view in world.served.pipeline.engines()]
    assert len(counted) == 2
    for counters in counted:
        sums = {
            name: sum(n for (own, _), n in counters.items() if own == name)
            for name in ("audit_checks", "audit_violations")
        }
        assert sums["audit_violations"] == 0 < sums["audit_checks"]


def test_the_parts_of_a_request_sum_to_the_whole_and_to_no_more_than_its_client_saw(
    world: World,
) -> None:
    for client, asked_ns in zip(world.clients, world.asked_ns, strict=True):
        (whole,) = world.about(client.name)["handovers"]
        assert sum(whole[name] for name in handover.PARTS) == whole["e2e_ns"]
        assert min(whole[name] for name in handover.PARTS) >= 0
        assert whole["queue_ns"] + whole["prefill_ns"] == whole["ttft_ns"]
        assert whole["output_tokens"] == TOKENS
        slack = whole["clock_error_ns"]
        assert whole["ttft_ns"] <= client.at_ns[0] - asked_ns
        assert whole["e2e_ns"] <= client.at_ns[-1] - asked_ns + slack
        second_ns = whole["ttft_ns"] + whole["first_gap_ns"]
        assert whole["ttft_ns"] < second_ns <= client.at_ns[1] - asked_ns + slack
        assert min(whole[f"{name}_ns"] for name in ("offer", "handshake", "wait", "copy")) > 0


def test_the_command_tells_both_parts_and_the_whole(world: World) -> None:
    where = ("--exporter", str(world.served.http.base_url).rstrip("/"))
    told = base("request", "r3", *where).stdout
    assert "r3: serial 4 of mini-prefill" in told
    assert "r3: serial 4 of mini-decode" in told
    assert "its KV went to decode: " in told
    assert "its KV came from prefill: " in told
    assert "r3: over two engines, 12 tokens, ended by length" in told
    assert re.search(
        r"its KV on the way to the decode engine: offer .*, handshake .*, wait .*, copy .* of ",
        told,
    )
    (whole,) = as_json("request", "r3", *where)["handovers"]
    assert whole["blocks"] * world.page_bytes == whole["bytes"]


HANDED: dict[str, Any] = {
    "output_tokens": 12, "finish_reason": "length", "queue_ns": 2_000_000, "prefill_ns": 30_000_000,
    "ttft_ns": 32_000_000, "hop_ns": 5_000_000, "decode_queue_ns": 1_000_000,
    "decode_ns": 110_000_000, "e2e_ns": 148_000_000, "first_gap_ns": 16_000_000,
    "tbt_p50_ns": 10_000_000, "tbt_p99_ns": 11_000_000, "offer_ns": 20_000, "handshake_ns": 400_000,
    "wait_ns": 4_000_000, "copy_ns": 600_000, "bytes": 81_920, "failed": False,
    "clock_error_ns": 300_000,
}  # fmt: skip


TOLD = """\
x: over two engines, 12 tokens, ended by length
        2 ms  waited on the prefill engine
       30 ms  prompt computed there, first token
        5 ms  its KV on the way to the decode engine: offer 20 us, handshake 400 us, wait 4 ms, copy 600 us of 80 KiB
        1 ms  waited on the decode engine
      110 ms  decoded there
      148 ms  in all; TTFT 32 ms, first gap 16 ms, then TBT p50 10 ms, p99 11 ms
              the hop's length is right within 300 us"""  # noqa: E501


def test_a_handover_reads_as_a_sum() -> None:
    assert "\n".join(handover.lines(HANDED, asked="x")) == TOLD


def test_of_a_hop_that_failed_nothing_is_made_up() -> None:
    known = ("queue_ns", "prefill_ns", "ttft_ns")
    lost = {name: value if name in known else None for name, value in HANDED.items()}
    lost |= {"failed": True, "output_tokens": 1, "finish_reason": "error"}
    told = handover.lines(lost, asked="x")
    assert told[0] == "x: over two engines, 1 token, ended by error"
    assert told[3].endswith("-  its KV on the way to the decode engine: it was never taken")
    assert told[-1].startswith("           -  in all; TTFT 32 ms, first gap -, then TBT p50 -")
