"""One real `vllm serve`, four clocks: the core, its front end, vLLM's own histograms, the client.

Prints the table of what each says; the differences are asserted in the order in which a token goes.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.engines.serving import Server, serving

from batchscope.exporter.fold import RingFold
from batchscope.exporter.rows import to_arrow
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.ring import RingReader, list_rings

pytestmark = pytest.mark.engines

STREAMS, AT_ONCE = 60, 12
WHOLE = 6
CLOCKS_NS = 200_000
"""Two readings of one machine's clocks, and a wall clock that is turned into a monotonic one."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Client:
    """What a client saw of one stream by its own monotonic clock, ns."""

    request_id: str
    asked: int
    pieces: list[int]
    tokens: int


def stream(server: Server, number: int) -> Client:
    """One streamed completion."""
    body = {"model": "tiny", "prompt": [7 + number % 90] * (20 + 9 * (number % 17)), "stream": True}
    body |= {"max_tokens": 8 + number % 40, "ignore_eos": True, "temperature": 0}
    body |= {"stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "X-Request-Id": f"stream-{number}"},
    )
    asked, pieces, tokens, name = time.monotonic_ns(), [], 0, ""
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            at = time.monotonic_ns()
            if not line.startswith(b"data: {"):
                continue
            said = json.loads(line[6:])
            name = said["id"]
            if said["choices"]:
                pieces.append(at)
            tokens = (said.get("usage") or {}).get("completion_tokens", tokens)
    return Client(name, asked, pieces, tokens)


@dataclass(frozen=True)
class Seen:
    """Rows of the core's and of the front end's ring by request key, the clients, vLLM's sums."""

    core: dict[str, dict[str, Any]]
    front: dict[str, dict[str, Any]]
    clients: list[Client]
    theirs: dict[str, float]
    hellos: list[dict[str, Any]]
    violations: int


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
        serving(tmp_path_factory.mktemp("model"), Path(rings), BATCHSCOPE="1") as server,
    ):
        stream(server, 0)  # what is made at the first request is none of these figures
        before = histograms(server)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            clients = list(threads.map(lambda n: stream(server, n), range(1, STREAMS + 1)))
        after = histograms(server)
        for number in range(WHOLE):
            server.completion(f"whole-{number}", [9 + number] * 30, 12)
        folds = [folded(path) for path in sorted(list_rings(Path(rings)))]
    theirs = {name: after[name] - before[name] for name in after}
    tables = {fold.hello["role"]: rows for fold, rows in folds}
    violations = sum(
        n
        for fold, _ in folds
        for (name, _), n in fold.totals.counters.items()
        if name == "audit_violations"
    )
    hellos = [fold.hello for fold, _ in folds]
    return Seen(tables["both"], tables["frontend"], clients, theirs, hellos, violations)


def histograms(server: Server) -> dict[str, float]:
    names = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
    found = server.counters()
    ends = ("sum", "count")
    return {f"{n}_{e}": found[f"vllm:{n}_seconds_{e}{{}}"] for n in names for e in ends}


def folded(path: Path) -> tuple[RingFold, dict[str, dict[str, Any]]]:
    """The fold of a ring, and its requests that ended by their key."""
    reader = RingReader(path)
    fold = RingFold(reader.hello, reader.ring_id, slo=None)
    rows: list[dict[str, Any]] = []
    while (raw := reader.poll()) is not None:
        seq, at = reader.position
        made = fold.fold(chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=at))
        for table in ("requests", "deliveries"):
            if table in made:
                rows += to_arrow(table, made[table]).to_pylist()
    return fold, {row["request_key"]: row for row in rows}


def of_client(seen: Seen, client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """(core's row, front end's row) of a reply's id."""
    (key,) = [k for k, row in seen.front.items() if row["external_key"] == client.request_id]
    return seen.core[key], seen.front[key]


def test_each_process_has_a_ring_of_its_own_and_every_request_is_in_both(seen: Seen) -> None:
    roles = {hello["role"]: hello for hello in seen.hellos}
    assert roles.keys() == {"both", "frontend"}
    assert roles["both"]["pid"] != roles["frontend"]["pid"]
    assert (roles["frontend"]["model_name"], roles["frontend"]["dp_rank"]) == ("tiny", None)
    assert len(seen.core) == STREAMS + WHOLE + 1
    assert seen.front.keys() == seen.core.keys()
    assert seen.violations == 0


def test_every_token_that_was_generated_was_delivered(seen: Seen) -> None:
    for key, row in seen.core.items():
        assert row["finish_reason"] == seen.front[key]["finish_reason"] == "length"
        assert row["output_tokens"] == seen.front[key]["delivered_tokens"]
    for client in seen.clients:
        assert client.tokens == of_client(seen, client)[1]["delivered_tokens"]
    whole = [row for row in seen.front.values() if "whole-" in row["request_key"]]
    assert [row["deliveries"] for row in whole] == [1] * WHOLE


def test_a_token_is_in_the_core_then_in_the_stream_then_at_the_client(seen: Seen) -> None:
    for client in seen.clients:
        core, front = of_client(seen, client)
        assert client.asked <= front["arrived_at_ns"] + CLOCKS_NS
        assert front["arrived_at_ns"] <= core["arrived_at_ns"] + CLOCKS_NS
        firsts = core["first_token_at_ns"], front["first_at_ns"], client.pieces[0]
        lasts = core["last_token_at_ns"], front["last_at_ns"], client.pieces[-1]
        assert firsts == tuple(sorted(firsts))
        assert lasts == tuple(sorted(lasts))
        assert core["ttft_ns"] <= front["ttft_ns"] + CLOCKS_NS
        assert front["ttft_ns"] <= client.pieces[0] - client.asked + CLOCKS_NS


def test_vllms_own_sums_lie_between_the_core_and_the_stream(seen: Seen) -> None:
    """Its TTFT ends before the outputs are processed, its time between tokens is the core's."""
    core, front = rows_of_streams(seen)
    theirs = seen.theirs
    assert theirs["time_to_first_token_count"] == STREAMS
    ours = total(front, "ttft_ns")
    assert total(core, "ttft_ns") <= theirs["time_to_first_token_sum"] <= ours + 1e-3
    assert ours - theirs["time_to_first_token_sum"] < 0.25 * ours
    spans = sum(row["last_token_at_ns"] - row["first_token_at_ns"] for row in core) / 1e9
    assert theirs["inter_token_latency_sum"] == pytest.approx(spans, rel=0.02)
    gaps = sum(row["output_tokens"] - 1 for row in core)
    assert theirs["inter_token_latency_count"] == gaps


def test_the_table(seen: Seen, capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(table(seen))
    with capsys.disabled():
        print("", *lines, sep="\n")
    assert len(lines) == 8


def rows_of_streams(seen: Seen) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    pairs = [of_client(seen, client) for client in seen.clients]
    return [core for core, _ in pairs], [front for _, front in pairs]


def total(rows: list[dict[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows)) / 1e9


def table(seen: Seen) -> Iterator[str]:
    """What each clock says, in ms: mean, median, longest."""
    core, front = rows_of_streams(seen)
    theirs, clients = seen.theirs, seen.clients
    yield "| clock | TTFT mean | p50 | max | time per token mean | p50 | max |"
    yield "|---|---|---|---|---|---|---|"
    yield _line("core", column(core, "ttft_ns"), column(core, "tpot_ns"))
    ttft = theirs["time_to_first_token_sum"] / theirs["time_to_first_token_count"]
    itl = theirs["inter_token_latency_sum"] / theirs["inter_token_latency_count"]
    yield f"| vLLM's histograms | {ttft * 1e3:.2f} | | | {itl * 1e3:.2f} | | |"
    yield _line("front end", column(front, "ttft_ns"), column(front, "tpot_ns"))
    first = np.array([c.pieces[0] - c.asked for c in clients], float)
    each = np.array([(c.pieces[-1] - c.pieces[0]) / (c.tokens - 1) for c in clients], float)
    yield _line("client", first, each)
    way = [c["arrived_at_ns"] - f["arrived_at_ns"] for c, f in zip(core, front, strict=True)]
    first_lag, lag = (column(front, f"lag_{of}_ns").mean() / 1e6 for of in ("first", "mean"))
    yield f"means: way to the core {sum(way) / len(way) / 1e6:.2f},"
    yield f"core to stream {first_lag:.2f} (first token), {lag:.2f} (all)"


def column(rows: list[dict[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], float)


def _line(clock: str, *measures: Floats) -> str:
    cells = [f(m) / 1e6 for m in measures for f in (np.mean, np.median, np.max)]
    return f"| {clock} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"
