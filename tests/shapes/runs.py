"""Traffic from the public traces through the cost model, each simulation run once a session.

The engine is the literature's: 100,000 KV tokens, block 16, reservations of 8,192 tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.engine.config import EngineConfig
from batchscope.engine.virtual import Simulation
from batchscope.workload.arrivals import Poisson
from batchscope.workload.read import read, read_trace
from batchscope.workload.trace import Trace

MS = 1_000_000
LONGEST = 8192
WATERMARK_BLOCKS = 62
"""One percent of the pool, as in vLLM up to 0.5."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FILES = {
    "conv": "azure2023_conv.csv.gz",
    "code": "azure2023_code.csv.gz",
    "sharegpt": "len_sharegpt_8k_llama2.csv.gz",
}


def folder() -> Path | None:
    """Where the traces are: BATCHSCOPE_TRACES, or shared/traces beside the repository."""
    told = os.environ.get("BATCHSCOPE_TRACES")
    beside = Path(__file__).parents[3] / "shared" / "traces"
    found = Path(told) if told else beside
    return found if found.is_dir() else None


@cache
def lengths(name: str) -> tuple[Ints, Ints]:
    """(prompt, output) tokens of each row that fits the engine, in the file's order."""
    content = read(_path(name))
    prompt, output = content.prompt_tokens, content.output_tokens  # type: ignore[union-attr]
    kept = prompt + output <= LONGEST
    return prompt[kept], output[kept]


def sampled(name: str, requests: int) -> tuple[Ints, Ints]:
    """So many rows, drawn with a fixed seed: a file's beginning need not be like the rest."""
    prompt, output = lengths(name)
    chosen = np.random.default_rng(0).permutation(len(prompt))[:requests]
    return prompt[chosen], output[chosen]


def poisson(name: str, requests: int, *, rate_per_s: float, seed: int = 1) -> Trace:
    """Sampled lengths, independent clients."""
    prompt, output = sampled(name, requests)
    at_ns = Poisson(rate_per_s)(np.random.default_rng(seed), requests)
    return Trace(at_ns=at_ns, prompt_tokens=prompt, output_tokens=output)


def recorded(name: str, requests: int | None = None) -> Trace:
    """The first arrivals of a trace as they came, those that fit the engine."""
    trace = read_trace(_path(name))
    kept = np.flatnonzero(trace.prompt_tokens + trace.output_tokens <= LONGEST)[:requests]
    return Trace(
        at_ns=trace.at_ns[kept],
        prompt_tokens=trace.prompt_tokens[kept],
        output_tokens=trace.output_tokens[kept],
    )


def like_poisson(trace: Trace, *, seed: int = 1) -> Trace:
    """The same lengths in the same order at the same mean rate, from independent clients."""
    rate_per_s = (len(trace) - 1) / (trace.duration_ns / 1e9)
    at_ns = Poisson(rate_per_s)(np.random.default_rng(seed), len(trace))
    return Trace(at_ns=at_ns, prompt_tokens=trace.prompt_tokens, output_tokens=trace.output_tokens)


def config(policy: str, **changes: Any) -> EngineConfig:
    """The engine of the shapes under a policy; orca reserves the longest unless told otherwise."""
    values: dict[str, Any] = {
        "runner": "cost",
        "policy": policy,
        "max_num_seqs": 256,
        "max_model_len": LONGEST,
        "enable_prefix_caching": False,
        "watermark_blocks": WATERMARK_BLOCKS if policy == "paged" else 0,
        "reservation": "max_model_len",
    }
    return EngineConfig(**(values | changes))


@cache
def saturated(name: str, policy: str, reservation: str = "max_model_len") -> Saturated:
    """All requests there at once: what the engine can do."""
    requests = {"sharegpt": 500, "conv": 800, "code": 500}[name]
    prompt, output = sampled(name, requests)
    trace = Trace(at_ns=np.zeros_like(prompt), prompt_tokens=prompt, output_tokens=output)
    return Saturated(Simulation(config(policy, reservation=reservation)).run(trace))


@cache
def offered(policy: str, rate_per_s: float, requests: int, **changes: Any) -> Simulation:
    """Sharegpt lengths at a rate."""
    trace = poisson("sharegpt", requests, rate_per_s=rate_per_s)
    return Simulation(config(policy, **changes)).run(trace)


class Saturated:
    """Figures while somebody was still waiting: the emptying of the engine is left out."""

    def __init__(self, run: Simulation) -> None:
        self.run = run
        self.steps = [step for step in run.steps if step.waiting]
        self._took = np.array([step.ended_ns - step.began_ns for step in self.steps])

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second."""
        end = self.steps[-1].ended_ns
        instants = np.concatenate([served.token_ns for served in self.run.served])
        return float((instants <= end).sum() / end * 1e9)

    @property
    def mean_running(self) -> float:
        """Requests in the batch, time-weighted."""
        return float(np.average([step.requests for step in self.steps], weights=self._took))

    @property
    def kv_useful_ratio(self) -> float:
        """Tokens held over token slots allocated, both time-weighted."""
        block = self.run.engine.config.block_size
        held = np.dot([step.kv_tokens for step in self.steps], self._took)
        slots = np.dot([step.kv_blocks * block for step in self.steps], self._took)
        return float(held / slots)

    @property
    def jitter(self) -> float:
        """P99 over median of a request's own gaps; the median request with 20 tokens or more."""
        gaps = [served.gaps_ns for served in self.run.served if len(served.token_ns) >= 20]
        return float(np.median([np.percentile(g, 99) / np.percentile(g, 50) for g in gaps]))


def tbt_ms(run: Simulation, percentile: float) -> float:
    """Of all gaps, token-weighted."""
    gaps = np.concatenate([served.gaps_ns for served in run.served])
    return float(np.percentile(gaps, percentile)) / MS


def ttft_ms(run: Simulation, percentile: float) -> float:
    """Of all requests."""
    return float(np.percentile(ttfts(run.served), percentile)) / MS


def ttfts(served: Iterable[Any]) -> list[int]:
    """Each request's, ns; all of them have one."""
    return [each.ttft_ns for each in served]


def is_rising(values: list[float]) -> bool:
    """Each above the one before."""
    return all(a < b for a, b in pairwise(values))


def _path(name: str) -> Path:
    found = folder()
    assert found is not None, "the tests are skipped without traces"
    return found / FILES[name]
