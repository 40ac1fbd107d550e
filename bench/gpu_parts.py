"""What bench/gpu.py measures, a function a part. Imports torch, the engine and the adapter."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from batchscope.adapters import mini
from batchscope.engine.batch import Batch, Member
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.engine import Engine
from batchscope.engine.model import Llama
from batchscope.engine.sequence import Sequence
from batchscope.engine.torch_runner import TorchRunner, pick_device, pick_dtype
from batchscope.schemas.ring import LEVEL_MEMBERS, LEVEL_OFF, set_level
from bench.abba import paired_interval
from bench.references import dense_logits, listed_attention

Figures = dict[str, Any]
BAR = {torch.bfloat16: 5e-2, torch.float32: 1e-3}
"""Most that |logits - reference| / |reference| may be: rounding of the dtype over all layers."""


class Plan(NamedTuple):
    """Sizes of a run. `lengths` are the contexts that are checked, `batches` those that are timed:
    `prompt` tokens each, `settle` steps, then `steps`. Blocks of the observer are `block` steps.
    """

    model: ModelConfig
    block_size: int
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    gathered: tuple[int, ...]
    observed: tuple[int, ...]
    prompt: int
    settle: int
    steps: int
    quads: int
    block: int
    copied_bytes: int


ONE_B = Plan(
    model=ModelConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_size=64,
        rope_theta=500_000.0,
        tie_embeddings=True,
    ),
    block_size=64,
    lengths=(1, 63, 64, 65, 300, 517),
    batches=(1, 8, 64, 256),
    gathered=(1, 8, 64),
    observed=(64, 256),
    prompt=512,
    settle=10,
    steps=200,
    quads=16,
    block=30,
    copied_bytes=4 << 30,
)
TINY = Plan(
    model=ModelConfig(dtype="float32"),
    block_size=16,
    lengths=(1, 15, 16, 17, 40),
    batches=(1, 6),
    gathered=(2,),
    observed=(2,),
    prompt=20,
    settle=2,
    steps=4,
    quads=8,
    block=2,
    copied_bytes=1 << 22,
)


class Subject:
    """One model of random weights and its runner, for all parts; no case begins after `deadline`,
    a reading of time.monotonic.
    """

    def __init__(self, plan: Plan, *, deadline: float) -> None:
        self.plan, self._deadline = plan, deadline
        longest = plan.prompt + max(
            plan.settle + plan.steps, (4 * plan.quads + 1) * (plan.settle + plan.block)
        )
        blocks = max(plan.batches) * -(-(longest + 2) // plan.block_size)
        self.config = EngineConfig(
            model=plan.model,
            block_size=plan.block_size,
            num_blocks=blocks,
            max_num_seqs=max(plan.batches),
            max_num_batched_tokens=8192,
            max_model_len=(longest // plan.block_size + 2) * plan.block_size,
            enable_prefix_caching=False,
        )
        device = pick_device("auto")
        self.cuda = device.type == "cuda"
        model = random_model(plan.model, device, pick_dtype(plan.model.dtype, device))
        self.parameters = sum(p.numel() for p in model.parameters())
        # the compiled kernel takes half a minute on a CPU
        kernel = None if self.cuda else listed_attention
        self.runner = TorchRunner(self.config, model=model, kernel=kernel)
        self.bytes_per_s: float | None = None

    @property
    def device_name(self) -> str:
        """Of the GPU, or that there is none."""
        return torch.cuda.get_device_name() if self.cuda else "cpu (no figures of a GPU)"

    @property
    def in_time(self) -> bool:
        """Whether another case may begin."""
        return time.monotonic() < self._deadline

    def wait(self) -> None:
        """Until the device has done all it was told."""
        if self.cuda:
            torch.cuda.synchronize()

    def bytes_per_step(self, context: float) -> float:
        """What a decode step must read at least: all weights, and the KV of `context` tokens."""
        cache = self.runner.cache
        kv = cache.select(2, 0).numel() * cache.element_size()
        weights = sum(p.numel() * p.element_size() for p in self.runner.model.parameters())
        return weights + kv * context

    def running(self, count: int, *, steps: int) -> tuple[Engine, list[Sequence], float]:
        """An engine with `count` requests that decode for `steps` more at least, and the seconds
        that their prompts took.
        """
        engine, draw = Engine(self.config, runner=self.runner), random.Random(count)
        vocabulary = range(self.plan.model.vocab_size)
        seqs = [
            engine.submit(str(number), draw.choices(vocabulary, k=self.plan.prompt), steps + 2)
            for number in range(count)
        ]
        began = time.perf_counter()
        while not all(seq.output for seq in seqs):
            engine.step()
        return engine, seqs, time.perf_counter() - began


def random_model(shape: ModelConfig, device: torch.device, dtype: torch.dtype) -> Llama:
    """Drawn on the device: on a CPU a billion normal numbers take half a minute."""
    with torch.device("meta"):
        model = Llama(shape).to(dtype)
    model = model.to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data.fill_(1)
        else:
            weight.data.normal_(0, weight.shape[1] ** -0.5, generator=generator)
    return model


def gathered(part: Callable[[Subject], Figures]) -> Callable[[Subject], Figures]:
    """`part` with the pages copied together for torch's SDPA, batches not padded, no graph."""

    def without(subject: Subject) -> Figures:
        runner, plan = subject.runner, subject.plan
        kept, runner.decodes = runner.decodes, None
        subject.plan = plan._replace(batches=plan.gathered)
        try:
            return part(subject)
        finally:
            runner.decodes, subject.plan = kept, plan

    return without


def ceiling(subject: Subject) -> Figures:
    """Bandwidth of a copy on the device, bytes read and bytes written together."""
    size = subject.plan.copied_bytes
    source = torch.randint(256, (size,), dtype=torch.uint8, device=subject.runner.device)
    target = torch.empty_like(source)

    def once() -> float:
        began = time.perf_counter()
        target.copy_(source)
        subject.wait()
        return time.perf_counter() - began

    took = sorted(once() for _ in range(12))
    subject.bytes_per_s = 2 * size / statistics.median(took)
    return {"GB_per_s": subject.bytes_per_s / 1e9, "bytes_copied": size}


def correct(subject: Subject) -> Figures:
    """Logits against the dense recomputation in float32: prompts whole and in two pieces, single
    tokens with padding, both in one batch; and a step's tokens against those of the same rows.
    """
    runner, plan = subject.runner, subject.plan
    dtype = runner.cache.dtype
    seqs = list(_sequences(subject))
    cases: Figures = {}

    def compare(name: str, members: list[Member]) -> Tensor:
        rows = runner.logits(members)
        errors = [_error(subject, row, m.seq) for row, m in zip(rows, members, strict=True)]
        cases[name] = {"error": max(errors), "rows": len(errors)}
        return rows

    for seq in seqs[1:]:
        half = len(seq.prompt) // 2
        if half:
            runner.logits([Member(seq, 0, half, is_prefill=True)])
        compare(f"prompt of {len(seq.prompt)}, in two", [_rest(seq, half)])
        compare(f"prompt of {len(seq.prompt)}", [_rest(seq, 0)])
        seq.output.append(len(seq.prompt) % plan.model.vocab_size)
    singles = [_rest(seq, seq.num_tokens - 1) for seq in seqs[1:]]
    rows = compare("single tokens", singles)
    compare("single tokens and a prompt", [*singles, _rest(seqs[0], 0)])
    cases["tokens of a step"] = _picked(runner, singles, rows)
    worst = max(case["error"] for case in cases.values())
    return {"worst": worst, "bar": BAR[dtype], "passed": worst < BAR[dtype], "cases": cases}


def _picked(runner: TorchRunner, members: list[Member], rows: Tensor) -> Figures:
    """How far the tokens of a step, on CUDA a graph, are behind the likeliest by `rows`."""
    picked = torch.tensor(list(runner.run(Batch(0, None, members=members)).values()))
    chosen = rows.cpu().float().gather(1, picked[:, None]).flatten()
    best = rows.cpu().float().amax(1)
    return {"error": float(((best - chosen) / best).max()), "equal": int((chosen == best).sum())}


def _sequences(subject: Subject) -> Iterator[Sequence]:
    """Requests of each length over blocks in random order; the first is as long as the last."""
    plan, draw = subject.plan, random.Random(5)
    blocks = draw.sample(range(subject.config.num_blocks), k=subject.config.num_blocks)
    for number, length in enumerate((plan.lengths[-1], *plan.lengths)):
        prompt = draw.choices(range(plan.model.vocab_size), k=length)
        seq = Sequence(str(number), prompt, 9, arrival_ns=0)
        seq.block_table = [blocks.pop() for _ in range(length // plan.block_size + 1)]
        yield seq


def _rest(seq: Sequence, start: int) -> Member:
    return Member(seq, start, seq.num_tokens - start, is_prefill=True)


def _error(subject: Subject, row: Tensor, seq: Sequence) -> float:
    tokens = seq.prompt + seq.output
    with torch.inference_mode():
        dense = dense_logits(subject.runner.model, subject.plan.model, tokens, dtype=torch.float32)
        return float((row.float() - dense).norm() / dense.norm())


def decode(subject: Subject) -> Figures:
    """Steady decode: intervals, tokens a second, and the floor that the bandwidth sets."""
    cases = {}
    for count in subject.plan.batches:
        cases[f"batch {count}"] = _decode(subject, count) if subject.in_time else {"skipped": True}
    return {"prompt_tokens": subject.plan.prompt, "cases": cases}


def _decode(subject: Subject, count: int) -> Figures:
    plan = subject.plan
    subject.running(count, steps=1)  # what is compiled at first is no part of the prompts' time
    engine, seqs, prefill_s = subject.running(count, steps=plan.settle + plan.steps)
    first_s, *_ = _intervals(engine, 1)
    _intervals(engine, plan.settle - 1)
    before = sum(seq.num_computed for seq in seqs)
    took = _intervals(engine, plan.steps)
    context = (before + sum(seq.num_computed for seq in seqs)) / 2
    p50 = statistics.median(took)
    device_ms = _device_ms(subject, seqs)
    return {
        "tokens_per_s": round(count * len(took) / sum(took)),
        "p50_ms": p50 * 1e3,
        "p99_ms": sorted(took)[int(0.99 * (len(took) - 1))] * 1e3,
        **({} if device_ms is None else {"device_ms": device_ms}),
        **_floor(subject, context, p50),
        "context_tokens": round(context / count),
        "first_step_s": first_s,
        "prefill_tokens_per_s": round(count * plan.prompt / prefill_s),
    }


def _floor(subject: Subject, context: float, p50: float) -> Figures:
    if subject.bytes_per_s is None:
        return {}
    floor = subject.bytes_per_step(context) / subject.bytes_per_s
    return {"floor_ms": floor * 1e3, "of_floor": p50 / floor}


def _intervals(engine: Engine, steps: int) -> list[float]:
    """Seconds of each of so many steps; each ends with its tokens on the host."""
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        took.append(time.perf_counter() - began)
    return took


@torch.inference_mode()
def _device_ms(subject: Subject, seqs: list[Sequence], repeats: int = 20) -> float | None:
    """The last step again and again without a host between: what the device alone takes."""
    steps = subject.runner.decodes
    if steps is None:
        return None
    rows = steps.filled([Member(seq, seq.num_computed - 1, 1, is_prefill=False) for seq in seqs])
    steps.picks(rows)
    subject.wait()
    began = time.perf_counter()
    for _ in range(repeats):
        steps.picks(rows)
    subject.wait()
    return (time.perf_counter() - began) / repeats * 1e3


def observer(subject: Subject) -> Figures:
    """Intervals with the adapter on against off, ABBA in one run; 95 % interval over quads."""
    cases = {}
    for count in subject.plan.observed:
        case = _observed(subject, count) if subject.in_time else {"skipped": True}
        cases[f"batch {count}"] = case
    return {"quads": subject.plan.quads, "block_steps": subject.plan.block, "cases": cases}


def _observed(subject: Subject, count: int) -> Figures:
    plan = subject.plan
    steps = (4 * plan.quads + 1) * (plan.settle + plan.block)
    engine, _, _ = subject.running(count, steps=steps)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="batchscope-gpu-", dir=base) as folder:
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": folder, "BATCHSCOPE_OVERHEAD": "0"}
        handle = mini.attach(engine, env)
        assert handle.ring_uuid is not None
        ring = handle.ring_uuid

        def block(level: int) -> float:
            set_level(Path(folder), ring, level)
            _intervals(engine, plan.settle)
            return statistics.median(_intervals(engine, plan.block))

        block(LEVEL_MEMBERS)
        quads = [
            [block(level) for level in (LEVEL_OFF, LEVEL_MEMBERS, LEVEL_MEMBERS, LEVEL_OFF)]
            for _ in range(plan.quads)
        ]
        handle.detach()
    off = [(a + d) / 2 for a, _, _, d in quads]
    ratios = [((b + c) / 2 - base) / base for (_, b, c, _), base in zip(quads, off, strict=True)]
    return {"off_ms": statistics.median(off) * 1e3, **paired_interval(ratios)}
