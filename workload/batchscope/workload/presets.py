"""Ready traffic with the statistics of published traces, since the files are not shipped.

Figures: Azure LLM inference traces of 2023 (Patel et al., Splitwise, ISCA 2024): a code assistant
whose clients come in bursts with long prompts and short answers, and a chat service.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from batchscope.workload.arrivals import ArrivalLaw, Gamma, QuantileGaps, stretched
from batchscope.workload.lengths import Independent, Quantiles
from batchscope.workload.shape import shortened
from batchscope.workload.synthesis import synthesise
from batchscope.workload.trace import Column, Trace, TraceError

#: Gaps of the code trace over their mean; the outermost knot is set so that CV is 13.
#: Windows of 120 requests have CV 1.2 / 4.3 / 8.6 (p10, p50, p90) in the trace and
#: 1.9 / 4.9 / 8.8 by this law; Gamma gaps of CV 13 give 6.3 / 8.0 / 10.5.
_CODE_GAPS = (
    *((0.0, 2.0e-5), (0.05, 2.3e-4), (0.1, 5.4e-4), (0.25, 5.3e-3), (0.5, 0.164), (0.75, 0.267)),
    *((0.9, 0.7), (0.95, 1.03), (0.99, 5.66), (0.999, 150.0), (1.0, 700.0)),
)

_SYSTEM_BLOCK_TOKENS = 16
_PREFIX_STREAM = 2


@dataclass(frozen=True)
class Preset:
    """A kind of traffic but for its rate: gaps, lengths, and who shares a system prompt.

    `shared_ratio` of the requests begin with one of `system_prompts_tokens`; no published figure
    is behind these two, they are here so that prefix reuse is exercised.
    """

    arrivals: Callable[[float], ArrivalLaw]
    lengths: Independent
    shared_ratio: float
    system_prompts_tokens: tuple[int, ...]
    source: str


PRESETS = {
    "code": Preset(
        arrivals=lambda rate_per_s: QuantileGaps(rate_per_s, _CODE_GAPS),
        lengths=Independent(
            prompt=Quantiles(
                {0.1: 147, 0.25: 578, 0.5: 1469, 0.75: 2744, 0.9: 5187, 0.99: 7436}, 3, 7437
            ),
            output=Quantiles({0.1: 6, 0.25: 9, 0.5: 13, 0.75: 24, 0.9: 55, 0.99: 251}, 6, 1899),
        ),
        shared_ratio=0.1,
        system_prompts_tokens=(256, 512),
        source="Azure LLM inference trace 2023, code",
    ),
    "chat": Preset(
        arrivals=lambda rate_per_s: Gamma(rate_per_s, cv=1.1),
        lengths=Independent(
            prompt=Quantiles(
                {0.1: 207, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.9: 2734, 0.99: 4142}, 2, 14050
            ),
            output=Quantiles(
                {0.1: 54, 0.25: 85, 0.5: 129, 0.75: 395, 0.9: 424, 0.99: 601}, 7, 1000
            ),
        ),
        shared_ratio=0.3,
        system_prompts_tokens=(256, 512, 512, 1024),
        source="Azure LLM inference trace 2023, conversation",
    ),
}


def preset(
    name: str,
    *,
    rate_per_s: float,
    requests: int,
    seed: int,
    length_scale: float = 1.0,
    output_scale: float | None = None,
    shared_ratio: float | None = None,
) -> Trace:
    """`requests` arrivals of a preset at exactly `rate_per_s` over the whole trace.

    `length_scale` (1/16 for a slow CPU) shortens prompts, outputs and system prompts alike, but
    outputs by `output_scale` where that is given.
    Raises TraceError for an unknown name, a rate that is not above 0, a share outside 0..1.
    """
    kind = _kind(name)
    if not rate_per_s > 0:
        raise TraceError(f"a rate must be above 0 requests per second, got {rate_per_s}")
    drawn = _drawn(name, kind, rate_per_s=rate_per_s, requests=requests, seed=seed)
    scaled = shortened(drawn, length_scale, output_scale=output_scale)
    ratio = kind.shared_ratio if shared_ratio is None else shared_ratio
    system = [round(length * length_scale) for length in kind.system_prompts_tokens]
    return with_system_prompts(scaled, system_prompts_tokens=system, ratio=ratio, seed=seed)


def with_system_prompts(
    trace: Trace, *, system_prompts_tokens: list[int], ratio: float, seed: int
) -> Trace:
    """A share `ratio` of the requests begins with a system prompt, any of the given ones.

    Prompt lengths stay as they are. A system prompt is cut to whole blocks of 16 tokens, at least
    one, and to leave the request a token of its own.
    """
    if not 0 <= ratio <= 1:
        raise TraceError(f"a share of requests is between 0 and 1, got {ratio}")
    rng = np.random.default_rng([seed, _PREFIX_STREAM])
    chosen = rng.integers(0, len(system_prompts_tokens), len(trace))
    shares = rng.random(len(trace)) < ratio
    blocks = np.maximum(np.array(system_prompts_tokens) // _SYSTEM_BLOCK_TOKENS, 1)
    fitting = (trace.prompt_tokens - 1) // _SYSTEM_BLOCK_TOKENS
    counts = np.where(shares, np.minimum(blocks[chosen], fitting), 0)
    facts = {"system_prompts_tokens": system_prompts_tokens, "shared_ratio": ratio}
    return replace(
        trace,
        prefix=_prefixes(chosen, counts),
        block_tokens=_SYSTEM_BLOCK_TOKENS,
        facts={**trace.facts, **facts},
    )


def _kind(name: str) -> Preset:
    if name not in PRESETS:
        raise TraceError(f"no preset is called {name!r} (there are {', '.join(PRESETS)})")
    return PRESETS[name]


def _drawn(name: str, kind: Preset, *, rate_per_s: float, requests: int, seed: int) -> Trace:
    """The preset's laws drawn, its time stretched to the rate that was asked for."""
    law = kind.arrivals(rate_per_s)
    facts = {
        "preset": name,
        "source": kind.source,
        "rate_per_s": rate_per_s,
    }
    trace = synthesise(
        arrivals=law, lengths=kind.lengths, requests=requests, seed=seed, facts=facts
    )
    return replace(trace, at_ns=stretched(trace.at_ns, rate_per_s=rate_per_s))


def _prefixes(chosen: Column, counts: Column) -> tuple[tuple[int, ...], ...]:
    """Block ids: system prompt in the high half, place in the low half."""
    starts = chosen.tolist()
    return tuple(
        tuple(range(start << 32, (start << 32) + count))
        for start, count in zip(starts, counts.tolist(), strict=True)
    )
