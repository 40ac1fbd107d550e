"""What only a device can get wrong: compiled kernels, graphs, and when the host waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from bench.references import listed_attention
from tests.support.served_batches import serve

from batchscope.engine.batch import Member
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.packing import row_order
from batchscope.engine.sequence import Sequence
from batchscope.engine.torch_runner import TorchRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what the compiler imports
]


def config(dtype: str, device: str = "cuda", **changes: Any) -> EngineConfig:
    base: dict[str, Any] = {"num_blocks": 40, "max_num_seqs": 12, "max_model_len": 256}
    model = ModelConfig(dtype=dtype, num_layers=3)
    return EngineConfig(model=model, device=device, **(base | changes))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """By the CPU in float64."""
    return serve(Engine(config("float64", "cpu")), 30)[0]


@contextmanager
def waits_forbidden() -> Iterator[None]:
    """Any wait of the host for the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_graphs_and_pages_in_place_give_the_tokens_of_the_cpu(expected: list[list[int]]) -> None:
    engine = Engine(config("float32"))
    found, batches = serve(engine, 30)
    assert found == expected
    assert engine.totals.preemptions > 0
    told = {(batch.num_prefill_tokens == 0, batch.launched) for batch in batches}
    assert all(launched is not None and launched.graph for alone, launched in told if alone)


def test_every_policy_gives_the_same_tokens(expected: list[list[int]]) -> None:
    runner = TorchRunner(config("float32", policy="paged"))
    for policy in ("paged", "orca", "static"):
        assert serve(Engine(config("float32", policy=policy), runner=runner), 30)[0] == expected


def test_bfloat16_pages_in_place_are_as_good_as_gathered_ones() -> None:
    settings = config("bfloat16")
    compiled = TorchRunner(settings)
    plain = TorchRunner(settings, kernel=listed_attention, model=compiled.model)
    seq = Sequence("a", list(range(100)), 4, arrival_ns=0)
    seq.block_table = [9, 2, 5, 7, 30, 1, 0]
    chunk, one = Member(seq, 0, 100, is_prefill=True), Member(seq, 100, 1, is_prefill=False)
    rows = []
    for runner in (compiled, plain):
        seq.output[:] = []
        runner.logits([chunk])
        seq.output[:] = [7]
        rows.append(runner.logits([one]).float())
    assert (rows[0] - rows[1]).norm() / rows[1].norm() < 1e-2


def test_all_sizes_are_made_ahead_and_leave_the_pool_alone() -> None:
    runner = TorchRunner(config("bfloat16", max_num_seqs=5))
    runner.prepare()
    assert not runner.cache[:, :, : 40 * 16].any()


def test_a_step_is_launched_without_a_wait() -> None:
    engine = Engine(config("bfloat16", max_num_batched_tokens=64))
    runner = engine.runner
    assert isinstance(runner, TorchRunner)
    for name in "abc":
        engine.submit(name, list(range(50)), 20)
    for _ in range(6):
        engine.step()
    for late in ([], list(range(40))):
        if late:
            engine.submit("d", late, 2)
            engine._drain()
        batch = engine.scheduler.schedule()
        assert (batch.num_prefill_tokens > 0) == bool(late)
        with torch.inference_mode(), waits_forbidden():
            picks, _ = runner._launch(row_order(batch))
        names = [member.seq.request_id for member in row_order(batch)]
        engine.scheduler.update(batch, dict(zip(names, picks.tolist(), strict=True)))
