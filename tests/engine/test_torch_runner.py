"""The real model: against a dense reference, and the same tokens under every schedule.

float64 throughout: sums in another order differ by about 1e-15 there, and a test asserts that the
smallest lead of a chosen token is far above that, so no rounding can flip an argmax.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from bench.references import dense_logits
from torch import Tensor

from batchscope.engine.batch import Member
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.packing import row_order
from batchscope.engine.runner import samples
from batchscope.engine.torch_runner import TorchRunner, pick_device, pick_dtype

MODEL = ModelConfig(dtype="float64", num_layers=3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)


def config(device: str, **changes: Any) -> EngineConfig:
    base: dict[str, Any] = {"model": MODEL, "num_blocks": 400, "max_model_len": 512}
    return EngineConfig(device=device, **(base | changes))


def submit_all(engine: Engine, count: int = 20) -> list[Any]:
    """Requests of 1 to 100 tokens, half of them behind a common prefix of 40."""
    draw = random.Random(7)
    shared = [draw.randrange(512) for _ in range(40)]
    return [
        engine.submit(
            str(number),
            shared * (number % 2) + [draw.randrange(512) for _ in range(draw.randrange(1, 60))],
            draw.randrange(1, 30),
        )
        for number in range(count)
    ]


def finish_all(engine: Engine) -> None:
    for _ in range(2000):
        if not engine.has_work():
            return
        engine.step()
    raise AssertionError("the engine never came to rest")


def test_every_sampled_row_equals_a_dense_recomputation(device: str) -> None:
    engine = Engine(config(device, num_blocks=24, max_num_batched_tokens=48, max_num_seqs=12))
    runner = engine.runner
    assert isinstance(runner, TorchRunner)
    paged = runner.logits
    leads: list[float] = []
    kinds: set[tuple[bool, bool]] = set()

    def compared(members: list[Member]) -> Tensor:
        kinds.add((members[0].is_prefill, members[-1].is_prefill))
        rows = paged(members)
        for row, member in zip(rows, filter(samples, members), strict=True):
            seq = member.seq
            tokens = seq.prompt + seq.output
            dense = dense_logits(runner.model, MODEL, tokens, dtype=torch.float64)
            torch.testing.assert_close(row, dense, rtol=0, atol=1e-10)
            first, second = row.topk(2).values.tolist()
            leads.append(first - second)
        return rows

    runner.logits = compared  # type: ignore[method-assign]
    submit_all(engine)
    finish_all(engine)
    totals = engine.totals
    assert len(leads) == totals.output
    assert min(leads) > 1e-8
    assert kinds == {(False, False), (False, True), (True, True)}
    assert totals.preemptions > 0
    assert totals.recomputed > 0
    assert totals.cached > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"num_blocks": 24},
        {"num_blocks": 24, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 32},
        {"max_num_batched_tokens": 7, "num_blocks": 12},
        {"enable_prefix_caching": False},
        {"max_num_seqs": 1},
        {"block_size": 1, "num_blocks": 300},
    ],
    ids=str,
)
def test_no_schedule_changes_a_token(device: str, changes: dict[str, Any]) -> None:
    outputs = []
    for setting in ({}, changes):
        engine = Engine(config(device, **setting))
        seqs = submit_all(engine)
        finish_all(engine)
        outputs.append([seq.output for seq in seqs])
    assert outputs[0] == outputs[1]
    if "num_blocks" in changes:
        assert engine.totals.preemptions > 0


def test_the_output_depends_on_the_whole_prompt_and_on_the_seed() -> None:
    def output(first: int, seed: int) -> list[int]:
        engine = Engine(config("cpu", seed=seed))
        seq = engine.submit("a", [first, *range(100)], 12)
        finish_all(engine)
        return seq.output

    assert output(1, 0) == output(1, 0)
    assert output(1, 0) != output(2, 0)
    assert output(1, 0) != output(1, 1)


def test_a_runner_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    TorchRunner(config("cpu"))
    assert torch.equal(before, torch.get_rng_state())


def test_single_tokens_form_one_group_ahead_of_the_chunks() -> None:
    engine = Engine(config("cpu", max_num_batched_tokens=24))
    for name, length in (("a", 5), ("b", 9), ("c", 30)):
        engine.submit(name, list(range(length)), 4)
    engine.step()
    members = row_order(engine.scheduler.schedule())
    assert [(m.seq.request_id, m.tokens) for m in members] == [("a", 1), ("b", 1), ("c", 20)]


def test_auto_picks_a_dtype_that_the_device_is_good_at() -> None:
    assert pick_dtype("auto", torch.device("cpu")) is torch.float32
    assert pick_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert pick_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="int64"):
        pick_dtype("int64", torch.device("cpu"))
