"""A real `vllm serve`: our sums against vLLM's own counters, aborts, and the death of its core."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, records
from tests.engines.serving import BUDGET, Server, burst, serving
from tests.engines.versions import fold_of

from batchscope.schemas.ring import LEVEL_MEMBERS, RingReader, list_rings, set_level

pytestmark = pytest.mark.engines

REQUESTS, BURST = 200, 20
Folded = Counter[tuple[str, tuple[str, ...]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
        serving(tmp_path_factory.mktemp("model"), Path(rings)) as answering,
    ):
        yield answering


@dataclass(frozen=True)
class Start:
    """What vLLM and we had counted when the load began; what the dormant engine had on disk."""

    theirs: Counter[str]
    ours: Folded
    dormant: set[str]


@pytest.fixture(scope="module")
def start(server: Server) -> Start:
    """Wake the dormant engine and its front end by their control words, under one request."""
    files = {path.suffix for path in server.rings.rglob("*") if path.is_file()}
    for control in (server.rings / "ctl").glob("*.ctl"):
        set_level(server.rings, control.stem, LEVEL_MEMBERS)
    server.completion("warm", [5] * 20, 100)
    until(lambda: len(list_rings(server.rings)) == 2)
    until(lambda: summed(folded(server), "requests_finished") == 1)
    return Start(server.counters(), folded(server), files)


@pytest.fixture(scope="module")
def replies(server: Server, start: Start) -> dict[str, dict[str, Any]]:
    assert start.dormant
    rng = random.Random(7)
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, REQUESTS, BURST):
        jobs = [job(number, rng) for number in range(first, first + BURST)]
        found |= burst(server, jobs)
    return found


def job(number: int, rng: random.Random) -> tuple[str, list[int], int]:
    shared = [11] * 96 if number % 4 == 0 else []
    own = [(number * 13 + i) % 900 + 10 for i in range(rng.randrange(10, 260 - len(shared)))]
    return f"client-{number}", shared + own, rng.randrange(4, 100)


def rings(server: Server) -> dict[str, RingReader]:
    """By role; the core's is of role both."""
    readers = map(RingReader, list_rings(server.rings))
    return {reader.hello["role"]: reader for reader in readers}


def ring(server: Server) -> RingReader:
    return rings(server)["both"]


def seen(server: Server) -> list[Seen]:
    return list(records(ring(server)))


def folded(server: Server) -> Folded:
    return Counter(fold_of(ring(server)).totals.counters)


def summed(counters: Folded, name: str) -> int:
    return sum(value for (metric, _), value in counters.items() if metric == name)


def test_a_plugin_lies_dormant_until_the_control_word_in_the_core_and_the_front_end(
    server: Server, start: Start, replies: dict[str, Any]
) -> None:
    assert start.dormant == {".ctl", ""}, "the control files and the salt"
    assert rings(server).keys() == {"both", "frontend"}
    assert rings(server)["frontend"].hello["pid"] == server.process.pid
    hello = ring(server).hello
    assert (hello["kind"], hello["model_name"], hello["dp_rank"]) == ("vllm", "tiny", 0)
    assert hello["pid"] != server.process.pid
    assert hello["config"]["cache_config"]["num_gpu_blocks_override"] == 40
    assert len(replies) == REQUESTS


def test_our_sums_equal_vllms_own_counters(
    server: Server, start: Start, replies: dict[str, Any]
) -> None:
    theirs, ours = server.counters(), folded(server)
    assert summed(ours, "audit_violations") == 0 < summed(ours, "audit_checks")
    theirs.subtract(start.theirs)
    ours.subtract(start.ours)
    prompts = sum(record["prompt_tokens"] for record in seen(server) if record.name == "arrived")
    usage = [reply["usage"] for reply in replies.values()]
    assert prompts == theirs["vllm:prompt_tokens_total{}"]
    assert prompts == sum(u["prompt_tokens"] for u in usage)
    assert summed(ours, "output_tokens") == theirs["vllm:generation_tokens_total{}"]
    assert summed(ours, "output_tokens") == sum(u["completion_tokens"] for u in usage)
    assert summed(ours, "cached_tokens") == theirs["vllm:prompt_tokens_cached_total{}"] > 0
    assert summed(ours, "preemptions") == theirs["vllm:num_preemptions_total{}"] > 0
    for reason in ("stop", "length", "abort", "error"):
        success = theirs[f'vllm:request_success_total{{finished_reason="{reason}"}}']
        assert ours["requests_finished", (reason,)] == success
    assert ours["requests_finished", ("length",)] == REQUESTS


def test_no_iteration_of_ours_exceeds_the_budget_while_vllms_own_histogram_does(
    server: Server, replies: dict[str, Any]
) -> None:
    assert replies
    scheduled = [record for record in seen(server) if record.name == "scheduled"]
    tokens = [record["prefill_tokens"] + record["decode_tokens"] for record in scheduled]
    assert max(tokens) == BUDGET == {record["budget_tokens"] for record in scheduled}.pop()
    theirs = server.counters()
    bucket = 'vllm:iteration_tokens_total_bucket{{le="{}"}}'
    over = theirs[bucket.format("+Inf")] - theirs[bucket.format(f"{BUDGET}.0")]
    assert over > 0, "vLLM counts a chunked prompt whole, in the step of its first token"


def test_the_clients_id_leads_to_its_request(server: Server, replies: dict[str, Any]) -> None:
    known = {record["external_text"] for record in seen(server) if record.name == "arrived"}
    assert {reply["id"] for reply in replies.values()} <= known


def test_who_hangs_up_is_an_abort_and_not_a_success(
    server: Server, replies: dict[str, Any]
) -> None:
    assert replies
    before = folded(server)
    gone = Counter[str]()
    for number in range(20):  # a busy core may finish a stream before its client is seen to leave
        server.hang_up(f"gone-{number}", [20 + number] * 40, core=ring(server).hello["pid"])
        until(lambda wanted=number + 1: ends(server, before).total() == wanted)
        gone = ends(server, before)
        if gone["abort"] == 3:
            break
    assert gone["abort"] == 3
    assert gone.keys() <= {"abort", "length"}
    arrived = summed(folded(server), "requests_arrived") - summed(before, "requests_arrived")
    assert arrived == gone.total()


def ends(server: Server, before: Folded) -> Counter[str]:
    """Requests that ended since, by reason."""
    since = folded(server) - before
    return Counter({of[0]: n for (name, of), n in since.items() if name == "requests_finished"})


def test_the_batch_in_flight_of_a_killed_core_is_named(
    server: Server, replies: dict[str, Any]
) -> None:
    assert replies
    reader = ring(server)
    read = list(records(reader))
    threads = [threading.Thread(target=doomed, args=(server, n), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    enough = len(read) + 60
    until(lambda: len(extended(read, reader)) > enough)
    core = reader.hello["pid"]
    until(lambda: halted_in_flight(core, read, reader))
    os.kill(core, signal.SIGKILL)
    until(lambda: not reader.alive())
    for thread in threads:
        thread.join(60)
    (lost,) = in_flight(extended(read, reader))
    assert lost["iteration_id"] == max(r["iteration_id"] for r in read if r.name == "scheduled")
    assert lost["n_decode"] + lost["n_prefill"] > 0
    ends = {r["serial"] for r in read if r.name == "finished"}
    assert {r["serial"] for r in read if r.name == "arrived"} - ends, "cut off, not ended"


def halted_in_flight(core: int, read: list[Seen], reader: RingReader) -> bool:
    """Stop the core where it stands; let it go on when that isn't inside a batch."""
    os.kill(core, signal.SIGSTOP)
    if in_flight(extended(read, reader)):
        return True
    os.kill(core, signal.SIGCONT)
    return False


def in_flight(read: list[Seen]) -> list[Seen]:
    """Batches that were scheduled and did not come back."""
    returned = {r["iteration_id"] for r in read if r.name == "completed"}
    return [r for r in read if r.name == "scheduled" and r["iteration_id"] not in returned]


def extended(read: list[Seen], reader: RingReader) -> list[Seen]:
    read.extend(records(reader))
    return read


def doomed(server: Server, number: int) -> None:
    try:
        server.completion(f"doomed-{number}", [30 + number] * 100, 300)
    except OSError:
        return


def until(holds: Any, *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
