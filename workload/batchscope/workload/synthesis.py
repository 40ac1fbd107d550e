"""A trace drawn from laws. Called by the presets, the client statistics and the benches."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from batchscope.workload.arrivals import ArrivalLaw
from batchscope.workload.lengths import Independent, LengthTable, PairLaw
from batchscope.workload.trace import Trace


def synthesise(
    *,
    arrivals: ArrivalLaw,
    lengths: PairLaw,
    requests: int,
    seed: int,
    facts: Mapping[str, Any],
) -> Trace:
    """`requests` arrivals; the same seed gives the same trace. Instants and lengths come from
    streams of their own, so that a change of one law leaves the other's draws alone.
    """
    times, sizes = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    at_ns = arrivals(times, requests)
    laws = {"arrivals": facts_of(arrivals), "lengths": facts_of(lengths)}
    prompt, output = lengths(sizes, len(at_ns))
    return Trace(
        at_ns=at_ns,
        prompt_tokens=np.maximum(prompt, 1),
        output_tokens=np.maximum(output, 1),
        facts={**facts, **laws, "seed": seed},
    )


def facts_of(law: Any) -> dict[str, Any]:
    """A law as JSON-able data, for a run's record."""
    if isinstance(law, LengthTable):
        return {"law": "resampled", **law.facts}
    if isinstance(law, Independent):
        return {"prompt": facts_of(law.prompt), "output": facts_of(law.output)}
    fields = {name: _plain(value) for name, value in asdict(law).items()}
    return {"law": _WORDS.sub("_", type(law).__name__).lower(), **fields}


_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _plain(value: Any) -> Any:
    """JSON knows only text as a key."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    return value
