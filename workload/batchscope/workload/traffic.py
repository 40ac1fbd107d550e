"""Traffic as a person asks for it: a trace file, a preset or a law, made to a rate and an extent.

Called by the CLI. Raises TraceError, one sentence that says what can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from batchscope.workload.arrivals import ArrivalLaw, Constant, Gamma, OnOff, Poisson, stretched
from batchscope.workload.cells import NS_PER_S
from batchscope.workload.clients import ClientTable
from batchscope.workload.lengths import Fixed, Independent, LengthLaw, LengthTable, PairLaw, Uniform
from batchscope.workload.presets import PRESETS, preset
from batchscope.workload.read import read
from batchscope.workload.shape import at_rate, clipped, limited, paced, shortened
from batchscope.workload.synthesis import synthesise
from batchscope.workload.trace import Trace, TraceError

DRAWN_S = 60.0
"""Traffic drawn from a law lasts so long unless it is said."""
MOST_DRAWN = 10_000_000
"""Requests that are drawn at most: their arrivals and lengths are held in memory."""

_LAWS: dict[str, tuple[int, Callable[..., ArrivalLaw]]] = {
    "constant": (0, Constant),
    "poisson": (0, Poisson),
    "gamma": (1, lambda rate_per_s, cv: Gamma(rate_per_s, cv=cv)),
    "onoff": (
        2,
        lambda rate_per_s, on_s, off_s: OnOff(
            rate_per_s, on_ns=round(on_s * NS_PER_S), off_ns=round(off_s * NS_PER_S)
        ),
    ),
}
"""Name -> (how many numbers follow it, the law of a rate and those)."""
_LAWS_SPELLED = "poisson, constant, gamma:CV, onoff:ON_S:OFF_S"


@dataclass(frozen=True)
class Wish:
    """What is asked for.

    source: a file, a preset (chat, code) or a law (poisson, constant, gamma:CV, onoff:ON_S:OFF_S).
    prompt_tokens, output_tokens: lengths for a law or for client statistics: N, or LOW:HIGH (all
    as likely). arrivals: the law that gives a file of mere lengths its instants. time_scale: 0.5 is
    twice the rate. None: as the source has it.
    """

    source: str
    rate_per_s: float | None = None
    time_scale: float | None = None
    requests: int | None = None
    duration_s: float | None = None
    seed: int = 0
    arrivals: str = "poisson"
    prompt_tokens: str = "512"
    output_tokens: str = "128"
    length_scale: float | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


def traffic(wish: Wish) -> Trace:
    """The trace that is asked for; its facts say how it came about."""
    _refuse_nonsense(wish)
    made = _made(wish)
    if wish.length_scale is not None:
        made = shortened(made, wish.length_scale)
    if wish.max_prompt_tokens is not None or wish.max_output_tokens is not None:
        made = clipped(
            made,
            max_prompt_tokens=wish.max_prompt_tokens,
            max_output_tokens=wish.max_output_tokens,
        )
    if not len(made):
        raise TraceError(f"{wish.source}: no request is left to send")
    return made


def _refuse_nonsense(wish: Wish) -> None:
    named = {
        "rate": wish.rate_per_s,
        "time scale": wish.time_scale,
        "duration": wish.duration_s,
        "number of requests": wish.requests,
        "longest prompt": wish.max_prompt_tokens,
        "longest output": wish.max_output_tokens,
    }
    for name, value in named.items():
        if value is not None and not value > 0:
            raise TraceError(f"a {name} must be above 0, not {value}")
    if wish.rate_per_s is not None and wish.time_scale is not None:
        raise TraceError("a rate and a time scale contradict each other: give one")


def _made(wish: Wish) -> Trace:
    name = wish.source.partition(":")[0]
    if name in PRESETS or name in _LAWS:
        return _drawn(wish, name)
    content = read(_file(wish.source))
    if isinstance(content, LengthTable):
        return _by_law(wish, wish.arrivals, content)
    if isinstance(content, ClientTable):
        return _fitted(wish, content.trace(lengths=_lengths(wish), seed=wish.seed))
    return _fitted(wish, content)


def _file(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        raise TraceError(f"{source!r} is a folder: name one trace file")
    if not path.is_file():
        known = f"{', '.join(PRESETS)}, {_LAWS_SPELLED}"
        raise TraceError(f"there is no file {source!r}, nor a law of that name ({known})")
    return path


def _drawn(wish: Wish, name: str) -> Trace:
    """From a preset or a law."""
    if name in PRESETS:
        rate, requests = _extent(wish)
        return preset(wish.source, rate_per_s=rate, requests=requests, seed=wish.seed)
    return _by_law(wish, wish.source, _lengths(wish))


def _by_law(wish: Wish, spelled: str, lengths: PairLaw) -> Trace:
    rate, requests = _extent(wish)
    trace = synthesise(
        arrivals=_law(spelled, rate),
        lengths=lengths,
        requests=requests,
        seed=wish.seed,
        facts={"source": wish.source, "rate_per_s": rate},
    )
    return replace(trace, at_ns=stretched(trace.at_ns, rate_per_s=rate))


def _extent(wish: Wish) -> tuple[float, int]:
    """(rate, requests) of what is drawn."""
    if wish.rate_per_s is None:
        raise TraceError(f"{wish.source} has no rate of its own: say how many requests per second")
    seconds = DRAWN_S if wish.duration_s is None else wish.duration_s
    requests = wish.requests or max(1.0, wish.rate_per_s * seconds)
    if requests > MOST_DRAWN:
        raise TraceError(f"{requests:.3g} requests are too many to draw: at most {MOST_DRAWN:,}")
    return wish.rate_per_s, round(requests)


def _fitted(wish: Wish, trace: Trace) -> Trace:
    """A recorded trace at the pace and to the extent that are asked for."""
    if wish.time_scale is not None:
        trace = paced(trace, wish.time_scale)
    duration_ns = None if wish.duration_s is None else round(wish.duration_s * NS_PER_S)
    if wish.rate_per_s is None:
        return limited(trace, limit=wish.requests, duration_ns=duration_ns)
    within = len(trace) if duration_ns is None else round(wish.rate_per_s * duration_ns / NS_PER_S)
    requests = min(len(trace), max(1, within), wish.requests or len(trace))
    return at_rate(trace, wish.rate_per_s, requests=requests)


def _law(spelled: str, rate_per_s: float) -> ArrivalLaw:
    name, *numbers = spelled.split(":")
    count, law = _LAWS.get(name, (-1, None))
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = [-1.0]
    if law is None or len(values) != count or not all(value > 0 for value in values):
        raise TraceError(f"{spelled!r} is no law: {_LAWS_SPELLED}")
    return law(rate_per_s, *values)


def _lengths(wish: Wish) -> PairLaw:
    return Independent(_length(wish.prompt_tokens), _length(wish.output_tokens))


def _length(spelled: str) -> LengthLaw:
    try:
        low, high = (int(part) for part in (spelled.split(":") * 2)[:2])
    except ValueError:
        low = high = 0
    if not 0 < low <= high or spelled.count(":") > 1:
        raise TraceError(f"{spelled!r} is no length: write 512, or 128:1024 for any between")
    return Fixed(low) if low == high else Uniform(low, high)
