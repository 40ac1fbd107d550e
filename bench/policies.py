"""One trace under every policy, in virtual time: what throughput costs in jitter.

Lengths are the ShareGPT ones where BATCHSCOPE_TRACES has them, else drawn from the chat preset.
Each policy serves them twice: all at once (what it can do), and as a Poisson stream (what a client
feels).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import SEVEN_B_A100
from batchscope.engine.split import run_split
from batchscope.engine.virtual import Served, Simulation
from batchscope.workload.arrivals import Poisson
from batchscope.workload.lengths import LengthTable
from batchscope.workload.presets import preset
from batchscope.workload.read import read
from batchscope.workload.shape import clipped
from batchscope.workload.trace import Trace

LENGTHS = "len_sharegpt_8k_llama2.csv.gz"
REQUESTS, RATE_PER_S, LONGEST, SEED = 500, 1.2, 8192, 1
BASE = EngineConfig(
    runner="cost",
    max_num_seqs=256,
    max_model_len=LONGEST,
    enable_prefix_caching=False,
    reservation="max_model_len",
)
CONFIGS = {
    "static": replace(BASE, policy="static"),
    "orca, longest reserved": replace(BASE, policy="orca"),
    "orca, own limit reserved": replace(BASE, policy="orca", reservation="max_tokens"),
    "paged": replace(BASE, policy="paged", watermark_blocks=62),
    **{
        f"chunked {budget}": replace(BASE, policy="chunked", max_num_batched_tokens=budget)
        for budget in (256, 512, 1024, 2048)
    },
}
HALVES = {
    "prefill": CONFIGS["paged"],
    "decode": replace(BASE, policy="orca", reservation="max_tokens"),
}


def traffic() -> tuple[str, Trace]:
    """(name, requests as a Poisson stream)."""
    path = Path(os.environ.get("BATCHSCOPE_TRACES", "")) / LENGTHS
    drawn = preset("chat", rate_per_s=RATE_PER_S, requests=REQUESTS, seed=SEED)
    if not path.is_file():
        return "chat preset", clipped(drawn, max_prompt_tokens=6000, max_output_tokens=2000)
    table = read(path)
    if not isinstance(table, LengthTable):
        raise TypeError(f"{path} holds no lengths")
    rng = np.random.default_rng(SEED)
    rows = rng.permutation(len(table.prompt_tokens))[:REQUESTS]
    at_ns = Poisson(RATE_PER_S)(rng, REQUESTS)
    return "sharegpt lengths", Trace(at_ns, table.prompt_tokens[rows], table.output_tokens[rows])


def saturated(config: EngineConfig, trace: Trace) -> dict[str, Any]:
    """All there at once; figures while somebody was waiting."""
    run = Simulation(config).run(at_once(trace))
    steps = [step for step in run.steps if step.waiting]
    took = np.array([step.ended_ns - step.began_ns for step in steps])
    held = np.dot([step.kv_tokens for step in steps], took)
    slots = np.dot([step.kv_blocks * config.block_size for step in steps], took)
    return {
        "tokens_per_s": _rate(run),
        "mean_running": float(np.average([step.requests for step in steps], weights=took)),
        "kv_useful_ratio": float(held / slots),
        "preemptions": run.engine.totals.preemptions,
    }


def at_once(trace: Trace) -> Trace:
    """The same requests, all there from the start."""
    return replace(trace, at_ns=np.zeros_like(trace.at_ns))


def streamed(config: EngineConfig, trace: Trace) -> dict[str, Any]:
    """As it arrives; what clients see, and why the queue stood still."""
    run = Simulation(config).run(trace)
    stops = Counter(run.engine.totals.deferrals).most_common(1)
    felt = _felt(run.served, [served.token_ns for served in run.served])
    return felt | {"waited_most_for": stops[0][0] if stops else None}


def split(trace: Trace) -> dict[str, Any]:
    """Prompts on one engine, decodes on another: tokens/s per engine, so that both are paid for.

    Measured while prompts are left: the decode engine is the narrow one then, it is never idle.
    """
    full = run_split(at_once(trace), **HALVES)
    live = run_split(trace, **HALVES)
    rest = {served.seq.request_id: served.token_ns for served in live.decode.served}
    first = live.prefill.served
    tokens = [served.token_ns + rest.get(served.seq.request_id, []) for served in first]
    return {
        "saturated": {"tokens_per_s": _rate(full.prefill, full.decode) / 2},
        "streamed": _felt(first, tokens),
    }


def _rate(*runs: Simulation) -> float:
    """Tokens per second of all engines until nobody waited for the first of them any more."""
    ended_ns = [step for step in runs[0].steps if step.waiting][-1].ended_ns
    instants = np.concatenate([served.token_ns for run in runs for served in run.served])
    return float((instants <= ended_ns).sum() / ended_ns * 1e9)


def _felt(served: list[Served], tokens: list[list[int]]) -> dict[str, Any]:
    """Quantiles over all gaps and all first tokens; jitter is P99 over median of a request's own
    gaps, for the median request with 20 tokens or more.
    """
    own = [np.diff(instants) / 1e6 for instants in tokens]
    gaps, first = np.concatenate(own), np.array([each.ttft_ns for each in served]) / 1e6
    ratios = [np.percentile(g, 99) / np.percentile(g, 50) for g in own if len(g) >= 19]
    return {
        "tbt_ms": {f"p{q}": float(np.percentile(gaps, q)) for q in (50, 99)},
        "ttft_ms": {f"p{q}": float(np.percentile(first, q)) for q in (50, 99)},
        "jitter": float(np.median(ratios)),
    }


def run() -> dict[str, Any]:
    """Every policy on the same trace."""
    name, trace = traffic()
    return {
        "trace": name,
        "requests": REQUESTS,
        "rate_per_s": RATE_PER_S,
        "cost_table": SEVEN_B_A100.name,
        "policies": {
            policy: {"saturated": saturated(config, trace), "streamed": streamed(config, trace)}
            for policy, config in CONFIGS.items()
        }
        | {"split, two engines": split(trace)},
    }


def table(result: dict[str, Any]) -> str:
    """The result for a person, in Markdown."""
    head = ["policy", "tokens/s an engine", "running", "KV useful", "TBT p50", "TBT p99", "jitter"]
    head += ["TTFT p50", "TTFT p99", "waited most for"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, both in result["policies"].items():
        full, live = both["saturated"], both["streamed"]
        tbt, ttft = live["tbt_ms"], live["ttft_ms"]
        cells = [
            name,
            f"{full['tokens_per_s']:.0f}",
            f"{full['mean_running']:.1f}" if "mean_running" in full else "",
            f"{full['kv_useful_ratio']:.1%}" if "kv_useful_ratio" in full else "",
            *(f"{tbt[q]:.1f} ms" for q in tbt),
            f"{live['jitter']:.1f}",
            *(f"{ttft[q] / 1e3:.2f} s" for q in ttft),
            (live["waited_most_for"] or "nothing") if "waited_most_for" in live else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = run()
    print(table(found), file=sys.stderr)
    print(json.dumps(found))
