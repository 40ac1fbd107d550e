"""What is in a trace, in the figures by which traffic is compared. Called by the CLI and docs."""

from typing import Any

import numpy as np

from batchscope.workload.cells import NS_PER_S
from batchscope.workload.trace import Column, Trace

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def describe(trace: Trace) -> dict[str, Any]:
    """Rate, burstiness, lengths, sharing; JSON-able, None where the trace can't say.

    Quantiles are values that occur. `shared_ratio` is the share of prompt tokens in blocks that an
    earlier prompt named too: what a prefix cache that never evicts would hit.
    """
    gaps = np.diff(trace.at_ns)
    mean_gap_ns = float(gaps.mean()) if len(gaps) and trace.duration_ns else None
    return {
        "requests": len(trace),
        "duration_ns": trace.duration_ns,
        "rate_per_s": None if mean_gap_ns is None else NS_PER_S / mean_gap_ns,
        "gap_cv": None if mean_gap_ns is None else float(gaps.std()) / mean_gap_ns,
        "simultaneous_requests": int(np.sum(gaps == 0)),
        "prompt_tokens": _lengths(trace.prompt_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "shared_ratio": _shared_ratio(trace),
    }


def _lengths(column: Column) -> dict[str, Any] | None:
    if not len(column):
        return None
    values = np.quantile(column, list(_QUANTILES.values()), method="inverted_cdf")
    named = dict(zip(_QUANTILES, values.tolist(), strict=True))
    return {**named, "mean": float(column.mean()), "max": int(column.max())}


def _shared_ratio(trace: Trace) -> float | None:
    if trace.prefix is None or trace.block_tokens is None or not len(trace):
        return None
    seen: set[int] = set()
    shared = 0
    for blocks, prompt in zip(trace.prefix, trace.prompt_tokens.tolist(), strict=True):
        known = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        shared += min(known * trace.block_tokens, prompt)
        seen.update(blocks)
    return shared / int(trace.prompt_tokens.sum())
