"""How a batch was launched, as the runner says and as the ring has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.references import listed_attention
from tests.adapters.drivers import MiniDriver
from tests.adapters.ring_records import Seen, read

from batchscope.adapters import mini
from batchscope.engine.batch import Batch, Launched
from batchscope.engine.config import EngineConfig
from batchscope.engine.engine import Engine
from batchscope.engine.torch_runner import TorchRunner
from batchscope.schemas.reasons import GraphMode, Provides
from batchscope.schemas.ring import RingReader, list_rings

pytestmark = pytest.mark.usefixtures("one_thread")


def watched(engine: Engine, folder: Path) -> tuple[list[Seen], dict[str, Any]]:
    """COMPLETED records of a run, and what the ring says that it provides."""
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
    handle = mini.attach(engine, env)
    for name in "abcdefgh":
        engine.submit(name, [ord(name)] * 20, 6)
    while engine.has_work():
        engine.step()
    handle.detach()
    provides = RingReader(list_rings(folder)[0]).hello["provides"]
    return [record for record in read(folder) if record.name == "completed"], provides


class Graphs:
    """A runner whose single tokens are padded, and told as if a device had launched a graph."""

    def __init__(self, config: EngineConfig) -> None:
        self._inner = TorchRunner(config, kernel=listed_attention)
        self.model, self.cache = self._inner.model, self._inner.cache
        self.told: list[Launched] = []

    def run(self, batch: Batch) -> dict[str, int]:
        tokens = self._inner.run(batch)
        assert batch.launched is not None
        if not batch.num_prefill_tokens:
            batch.launched = batch.launched._replace(graph=True)
        self.told.append(batch.launched)
        return tokens


def test_tokens_with_padding_and_graph_mode_are_recorded_of_each_batch(tmp_path: Path) -> None:
    config = EngineConfig(device="cpu", max_num_seqs=6, num_blocks=60, max_model_len=128)
    runner = Graphs(config)
    seen, provides = watched(Engine(config, runner=runner), tmp_path)
    code = {False: GraphMode.EAGER.code, True: GraphMode.FULL.code}
    assert [(s["padded_tokens"], s["graph_mode"]) for s in seen] == [
        (told.tokens, code[told.graph]) for told in runner.told
    ]
    assert {told.graph for told in runner.told} == {True, False}
    assert provides["completed.padded_tokens"] == provides["completed.graph_mode"] == "exact"


def test_the_cost_model_launches_nothing_and_says_so(tmp_path: Path) -> None:
    seen, provides = watched(MiniDriver().engine(), tmp_path)
    assert seen
    assert {(s["padded_tokens"], s["graph_mode"]) for s in seen} == {(None, 0)}
    assert provides["completed.padded_tokens"] == Provides.ABSENT.value
