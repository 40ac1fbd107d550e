"""Fit a trace to an engine: its pace, its lengths, its extent, and clients that give up.

Every function gives a new trace and writes what it did into its facts: a run on clipped traffic
must say so.
"""

from dataclasses import replace
from fractions import Fraction
from math import isfinite
from typing import Any

import numpy as np

from batchscope.workload.arrivals import stretched
from batchscope.workload.trace import NEVER_NS, Column, Trace, TraceError, head, repeated


def paced(trace: Trace, scale: float) -> Trace:
    """Every instant multiplied by `scale`: 0.5 is twice the rate. Cancellations keep their delay.
    Raises TraceError unless scale > 0.
    """
    if not scale > 0:
        raise TraceError(f"a time scale must be above 0, got {scale}")
    at_ns = np.rint(trace.at_ns * scale).astype(np.int64)
    return _noted(replace(trace, at_ns=at_ns), time_scale=scale)


def at_rate(trace: Trace, rate_per_s: float, *, requests: int) -> Trace:
    """`requests` arrivals at exactly this mean rate; the trace begins anew when it is too short.
    Raises TraceError unless the rate is above 0.
    """
    if not rate_per_s > 0:
        raise TraceError(f"a rate must be above 0 requests per second, got {rate_per_s}")
    longer = repeated(trace, requests)
    at_ns = stretched(longer.at_ns - longer.at_ns[:1], rate_per_s=rate_per_s)
    return _noted(replace(longer, at_ns=at_ns), rate_per_s=rate_per_s, repeated_to=requests)


def clipped(
    trace: Trace, *, max_prompt_tokens: int | None = None, max_output_tokens: int | None = None
) -> Trace:
    """Longer prompts and outputs are cut to the limit, none is dropped; the facts count them."""
    prompt = _cut(trace.prompt_tokens, max_prompt_tokens)
    output = _cut(trace.output_tokens, max_output_tokens)
    return _noted(
        replace(trace, prompt_tokens=prompt, output_tokens=output),
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        clipped_prompts=int(np.sum(prompt < trace.prompt_tokens)),
        clipped_outputs=int(np.sum(output < trace.output_tokens)),
    )


def limited(trace: Trace, *, limit: int | None = None, duration_ns: int | None = None) -> Trace:
    """The first `limit` requests, and of them those that arrive before `duration_ns`."""
    requests = len(trace) if limit is None else min(limit, len(trace))
    if duration_ns is not None:
        requests = min(requests, int(np.searchsorted(trace.at_ns, duration_ns)))
    return _noted(head(trace, requests), limit=limit, duration_limit_ns=duration_ns)


def shortened(trace: Trace, length_scale: float, *, output_scale: float | None = None) -> Trace:
    """Every length times `length_scale`, rounded up, shared blocks with them: a small engine sees
    the same shapes. Outputs have a scale of their own where `output_scale` is given: a sixteenth
    of 13 tokens leaves nothing to decode. Raises TraceError when a shared block wouldn't be whole
    tokens any more.
    """
    ratio = _ratio(length_scale)
    output_ratio = ratio if output_scale is None else _ratio(output_scale)
    block = None if trace.block_tokens is None else trace.block_tokens * ratio
    if block is not None and block.denominator != 1:
        blocks = f"blocks of {trace.block_tokens} tokens"
        raise TraceError(f"length scale {length_scale} cuts {blocks} into parts of a token")
    scaled = replace(
        trace,
        prompt_tokens=_scaled(trace.prompt_tokens, ratio),
        output_tokens=_scaled(trace.output_tokens, output_ratio),
        block_tokens=None if block is None else int(block),
    )
    return _noted(scaled, length_scale=float(ratio), output_scale=float(output_ratio))


def impatient(trace: Trace, *, abort_ratio: float, mean_patience_ns: int, seed: int) -> Trace:
    """A share of the clients vanishes, after an exponential time from arrival; the engine may have
    answered by then. Raises TraceError unless 0 <= abort_ratio <= 1.
    """
    if not 0 <= abort_ratio <= 1:
        raise TraceError(f"an abort ratio is between 0 and 1, got {abort_ratio}")
    rng = np.random.default_rng([seed, _ABORT_STREAM])
    leaves = rng.random(len(trace)) < abort_ratio
    patience = np.rint(rng.exponential(mean_patience_ns, len(trace))).astype(np.int64)
    column = np.where(leaves, patience, NEVER_NS)
    facts = {"abort_ratio": abort_ratio, "mean_patience_ns": mean_patience_ns, "abort_seed": seed}
    return _noted(replace(trace, abort_after_ns=column), **facts)


_ABORT_STREAM = 3


def _cut(column: Column, limit: int | None) -> Column:
    return column if limit is None else np.minimum(column, limit)


def _ratio(scale: float) -> Fraction:
    """A scale as a small fraction, so that scaling is exact. Raises TraceError unless above 0."""
    ratio = Fraction(scale).limit_denominator(10_000) if isfinite(scale) else Fraction(0)
    if ratio <= 0:
        raise TraceError(f"a length scale must be above 0, got {scale}")
    return ratio


def _scaled(column: Column, ratio: Fraction) -> Column:
    """Rounded up in integers: ceil(ceil(n r) / (B r)) = ceil(n / B), so blocks stay in step."""
    return -(-column * ratio.numerator // ratio.denominator)


def _noted(trace: Trace, **step: Any) -> Trace:
    """The trace with one more line in its history."""
    said = {name: value for name, value in step.items() if value is not None}
    history = [*trace.facts.get("shaping", []), said]
    return replace(trace, facts={**trace.facts, "shaping": history})
