"""The real OutputProcessor of each version: what the ring says against what its streams got."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest
from tests.adapters.ring_records import Seen, read
from tests.engines.versions import PYTHON, ROOT, TIMEOUT_S, environment, versions

from batchscope.schemas.reasons import FinishReason, words

pytestmark = pytest.mark.engines

READY_NS = 1_234_500_000_000
CAME_NS = 250_000_000
ANSWERS = {"0_many": "many/0", "1_many": "many/1"}
END = words(FinishReason)
Pieces = dict[str, list[int]]


@dataclass(frozen=True)
class FrontEnd:
    """One processor: tokens that each stream got, piece by piece, and the ring."""

    got: Pieces
    ring: list[Seen]
    faults: int

    def names(self) -> dict[int, str]:
        """Serial -> vLLM's own id."""
        told = [record for record in self.ring if record.name in ("arrived", "live")]
        return {record["serial"]: record["key_text"] for record in told}

    def delivered(self) -> Pieces:
        """The same as `got`, by the ring."""
        pieces: Pieces = defaultdict(list)
        for record in self.ring:
            for serial, tokens in record["tokens"] if record.name == "delivered" else ():
                pieces[stream_of(self.names()[serial])].append(tokens)
        return dict(pieces)

    def ends(self) -> dict[str, tuple[str, int]]:
        """Internal id -> (reason, tokens) at its end."""
        names = self.names()
        return {
            names[r["serial"]]: (str(END[r["reason"]]), r["output_tokens"])
            for r in self.ring
            if r.name == "finished"
        }


def stream_of(name: str) -> str:
    index, _, parent = name.partition("_")
    return f"{parent}/{index}" if parent else f"{name}/0"


@pytest.fixture(scope="module", params=versions())
def front_ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, FrontEnd]:
    folder = tmp_path_factory.mktemp(f"frontend-{request.param}")
    env = environment(request.param)
    command = [str(PYTHON), "-m", "tests.engines.frontend_process", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["version"].startswith(request.param)
    return {
        name: FrontEnd(said[name], read(folder / name), said["faults"])
        for name in ("plain", "spaced")
    }


def test_every_stream_got_what_the_ring_says_piece_by_piece(
    front_ends: dict[str, FrontEnd],
) -> None:
    plain = front_ends["plain"]
    got = {name: [n for n in pieces if n] for name, pieces in plain.got.items()}
    so_far = got["b/0"]
    got["b/0"] = [after - before for before, after in pairwise([0, *so_far])]
    assert plain.delivered() == got
    assert plain.faults == 0


def test_a_stream_interval_delays_tokens_and_the_ring_says_so(
    front_ends: dict[str, FrontEnd],
) -> None:
    spaced = front_ends["spaced"]
    assert spaced.delivered() == spaced.got
    assert sum(spaced.got["s/0"]) == 8


def test_everyone_ends_once_with_the_tokens_that_the_stream_got(
    front_ends: dict[str, FrontEnd],
) -> None:
    plain = front_ends["plain"]
    ends = plain.ends()
    assert len(ends) == len([r for r in plain.ring if r.name == "finished"]) == 10
    assert ends.pop("gone") == ("abort", 3)
    assert {reason for reason, _ in ends.values()} == {"length"}
    here_before = {"early": 3}
    for name, (_, tokens) in ends.items():
        got = plain.delivered()[stream_of(name)]
        assert tokens == sum(got) + here_before.get(name, 0)


def test_instants_are_the_cores_stamp_the_return_of_the_call_and_vllms_arrival(
    front_ends: dict[str, FrontEnd],
) -> None:
    plain = front_ends["plain"]
    handed = [r for r in plain.ring if r.name == "delivered"]
    assert {r["ready_at_ns"] for r in handed} == {READY_NS}
    assert [r["at_ns"] for r in handed] == sorted(r["at_ns"] for r in handed)
    arrived = [r for r in plain.ring if r.name == "arrived"]
    assert len(arrived) == 8
    first = min(r["at_ns"] for r in handed)
    assert all(first - 5 * 10**9 < r["at_ns"] <= first - CAME_NS for r in arrived[:1])
