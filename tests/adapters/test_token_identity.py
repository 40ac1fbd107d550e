"""Tokens of a real model: the same bytes watched or not, under every policy, when requests are
preempted and when prefixes are reused.

float64: no rounding of another order of sums flips an argmax there (the engine's own tests assert
how far the chosen tokens lead).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import read

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.policies import POLICIES
from batchscope.engine.sequence import Sequence

PREEMPTING = {"chunked", "paged"}
ROOMY, TIGHT = 400, 16


pytestmark = pytest.mark.usefixtures("one_thread")


def engine_of(**changes: Any) -> Engine:
    model = ModelConfig(dtype="float64")
    base: dict[str, Any] = {"model": model, "device": "cpu", "max_model_len": 128}
    return Engine(EngineConfig(**(base | changes)))


def serve(engine: Engine, count: int = 16) -> bytes:
    """All tokens, request after request; half of the prompts share 40 tokens."""
    draw = random.Random(3)
    shared = [draw.randrange(512) for _ in range(40)]
    seqs: list[Sequence] = []
    for number in range(count):
        own = [draw.randrange(512) for _ in range(draw.randrange(1, 50))]
        prompt = shared * (number % 2) + own
        seqs.append(engine.submit(str(number), prompt, draw.randrange(1, 30)))
        if number % 3 == 0:
            engine.step()
    for _ in range(3000):
        if not engine.has_work():
            return b"".join(b"".join(t.to_bytes(4, "little") for t in s.output) for s in seqs)
        engine.step()
    raise AssertionError("the engine never came to rest")


@pytest.fixture(scope="module")
def alone() -> bytes:
    """Each request for itself, nothing reused."""
    engine = engine_of(max_num_seqs=1, enable_prefix_caching=False, num_blocks=ROOMY)
    told = serve(engine)
    assert engine.totals.preemptions == engine.totals.cached == 0
    return told


@pytest.mark.parametrize("caching", [True, False], ids=["reuse", "fresh"])
@pytest.mark.parametrize("blocks", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_token_is_the_same_watched_or_not_whatever_the_schedule(
    alone: bytes, tmp_path: Path, *, policy: str, blocks: int, caching: bool
) -> None:
    settings = {"policy": policy, "num_blocks": blocks, "enable_prefix_caching": caching}
    assert serve(engine_of(**settings)) == alone

    watched = engine_of(**settings)
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(tmp_path), "BATCHSCOPE_OVERHEAD": "0"}
    handle = mini.attach(watched, env)
    assert serve(watched) == alone
    handle.detach()

    totals, seen = watched.totals, [record.name for record in read(tmp_path)]
    assert seen.count("completed") == totals.iterations > 0
    assert seen.count("preempted") == totals.preemptions
    assert (totals.preemptions > 0) == (blocks == TIGHT and policy in PREEMPTING)
    assert (totals.cached > 0) == caching
