"""Real checkpoints: the same logits and tokens as transformers, however the engine schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.checkpoints import FAMILIES, SHAPE, packed, waves, write
from torch import Tensor

from batchscope.engine.batch import Member
from batchscope.engine.checkpoint import CheckpointError, model_config
from batchscope.engine.config import EngineConfig
from batchscope.engine.engine import Engine
from batchscope.engine.torch_runner import TorchRunner

PROMPT = [(7 * i * i + 3) % 96 for i in range(40)]
# transformers 5.24.0, torch 2.13.0, float32, on the checkpoints of checkpoints.py: the first six
# logits after PROMPT, and eight tokens of greedy generation
TRANSFORMERS: dict[str, tuple[list[float], list[int]]] = {
    "llama": (
        [-1.73747, 2.43877, -1.80031, 0.17284, 1.54958, -2.42073],
        [30, 26, 9, 44, 30, 19, 62, 1],
    ),
    "llama3": (
        [1.22714, 0.32997, -1.70581, 2.14454, -1.40516, -0.10616],
        [69, 11, 11, 11, 77, 3, 11, 11],
    ),
    "qwen2": (
        [-0.39633, 0.85217, -0.83987, 0.36618, 0.30867, -0.81395],
        [80, 8, 75, 93, 14, 1, 32, 72],
    ),
    "qwen3": (
        [-0.12998, 0.7103, -0.90041, 0.59588, 0.03601, -0.64811],
        [6, 72, 14, 80, 88, 38, 25, 15],
    ),
}


def engine(folder: Path, *, dtype: str = "float32", **changes: Any) -> Engine:
    shape = model_config(folder, dtype=dtype)
    values: dict[str, Any] = {"num_blocks": 64, "max_model_len": 256, "device": "cpu"}
    return Engine(EngineConfig(model=shape, weights=str(folder), **(values | changes)))


def sampled_rows(engine: Engine) -> list[Tensor]:
    """What the model will have said at each sampling step, in the order of steps."""
    runner, rows = engine.runner, []
    assert isinstance(runner, TorchRunner)
    original = runner.logits

    def kept(members: list[Member]) -> Tensor:
        rows.append(original(members))
        return rows[-1]

    runner.logits = kept  # type: ignore[method-assign]
    return rows


def finish_all(engine: Engine) -> None:
    for _ in range(500):
        if not engine.has_work():
            return
        engine.step()
    raise AssertionError("the engine never came to rest")


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("budget", [512, 12])
def test_logits_and_tokens_are_those_of_transformers(
    tmp_path: Path, family: str, budget: int
) -> None:
    made = engine(write(tmp_path, family), max_num_batched_tokens=budget)
    rows = sampled_rows(made)
    seq = made.submit("a", PROMPT, 8)
    finish_all(made)
    logits, tokens = TRANSFORMERS[family]
    first = next(row for row in rows if len(row))
    assert first[0, :6].tolist() == pytest.approx(logits, abs=1e-4)
    assert seq.output == tokens


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_preemption_and_company_change_no_token(tmp_path: Path, family: str) -> None:
    folder = write(tmp_path, family)
    made = engine(folder, num_blocks=8, max_num_batched_tokens=24, block_size=8)
    seq, *_ = [made.submit(name, PROMPT[: 40 - 4 * i], 8) for i, name in enumerate("abc")]
    for _ in range(5):
        made.step()
    made.scheduler.preempt(made.scheduler.running[0])
    finish_all(made)
    assert seq.num_preemptions >= 1
    assert seq.output == TRANSFORMERS[family][1]


def test_bfloat16_shards_are_cast_to_the_dtype_wanted(tmp_path: Path) -> None:
    made = engine(write(tmp_path, "llama", dtype=torch.bfloat16), dtype="float64")
    assert isinstance(made.runner, TorchRunner)
    expected = waves(SHAPE | FAMILIES["llama"])["model.norm.weight"].bfloat16().double()
    assert torch.equal(made.runner.model.norm.weight.data, expected)


def test_a_stop_token_of_the_checkpoint_ends_a_request(tmp_path: Path) -> None:
    folder = write(tmp_path, "qwen2")
    told = json.loads((folder / "config.json").read_text())
    stop = TRANSFORMERS["qwen2"][1][3]
    (folder / "config.json").write_text(json.dumps(told | {"eos_token_id": [2, stop]}))
    made = engine(folder)
    seq = made.submit("a", PROMPT, 8, ignore_eos=False)
    finish_all(made)
    assert seq.output == TRANSFORMERS["qwen2"][1][:4]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba"}, "'mamba' is not among llama, qwen2, qwen3"),
        ({"use_sliding_window": True}, "sliding windows"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "'yarn' is not among"),
        ({"hidden_act": "gelu"}, "other than silu"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    config = SHAPE | FAMILIES["llama"] | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=why):
        model_config(tmp_path)


def test_a_folder_without_a_config_or_with_half_of_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        model_config(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="'vocab_size' is missing"):
        model_config(tmp_path)


def test_tensors_that_lack_or_are_left_over_or_of_another_shape_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "llama")
    shard = folder / "model-00001-of-00002.safetensors"
    whole, extra = shard.read_bytes(), folder / "z.safetensors"
    shard.unlink()
    with pytest.raises(CheckpointError, match="tensors are missing"):
        engine(folder)
    shard.write_bytes(whole)
    for name, size, why in (("what", 1, "no what"), ("model.norm.weight", 3, r"\(3,\)")):
        extra.write_bytes(packed({name: torch.ones(size)}))
        with pytest.raises(CheckpointError, match=why):
            engine(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        b"\x02\0\0\0\0\0\0\0[]",
        packed({"model.norm.weight": torch.ones(32)})[:-40],
        packed({"model.norm.weight": torch.ones(32, dtype=torch.int64)}),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path, "llama")
    (folder / "model-00001-of-00002.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        engine(folder)
