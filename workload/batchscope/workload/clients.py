"""Client statistics: traffic as many clients, each with its own rate and burstiness by window.

Read by `read`, turned into a trace by `ClientTable.trace`. Source of the model: ServeGen (Alibaba):
production traffic is a sum of few steady and many bursty clients.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from batchscope.workload.cells import NS_PER_S, instant_ns, number
from batchscope.workload.lengths import PairLaw
from batchscope.workload.source import Record
from batchscope.workload.synthesis import facts_of
from batchscope.workload.trace import Column, Trace, TraceError

#: Length of a window when a file has only one, as published.
WINDOW_NS = 600 * NS_PER_S
_CLIENT_STREAM, _LENGTH_STREAM = 4, 5

Gaps = npt.NDArray[np.float64]
_DRAWS: dict[str, Callable[[np.random.Generator, float, int], Gaps]] = {
    "Gamma": lambda rng, shape, size: rng.gamma(shape, size=size),
    "Weibull": lambda rng, shape, size: rng.weibull(shape, size=size),
}


@dataclass(frozen=True)
class Window:
    """One client in one window: `rate_per_s` holds over the window, gaps follow `pattern`."""

    client: str
    start_ns: int
    rate_per_s: float
    pattern: str
    shape: float


@dataclass(frozen=True)
class ClientTable:
    """The windows in which a client sent anything."""

    windows: tuple[Window, ...]
    start_ns: int
    window_ns: int
    facts: Mapping[str, Any]

    def arrivals(self, rng: np.random.Generator) -> tuple[Column, tuple[str, ...]]:
        """(instants in ns from the first window, client of each), in time order."""
        parts = [_window_instants(window, self.window_ns, rng) for window in self.windows]
        at_ns = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        order = np.argsort(at_ns, kind="stable")
        clients = tuple(self.windows[owner].client for owner in owners[order])
        return at_ns[order] - self.start_ns, clients

    def trace(self, *, lengths: PairLaw, seed: int) -> Trace:
        """A trace drawn from the statistics; sessions are the clients."""
        at_ns, clients = self.arrivals(np.random.default_rng([seed, _CLIENT_STREAM]))
        prompt, output = lengths(np.random.default_rng([seed, _LENGTH_STREAM]), len(at_ns))
        facts = {**self.facts, "lengths": facts_of(lengths), "seed": seed}
        return Trace(
            at_ns=at_ns, prompt_tokens=prompt, output_tokens=output, session=clients, facts=facts
        )


def client_table(path: Path, rows: Iterator[Record]) -> ClientTable:
    """Client statistics of a file. Raises TraceError at a row that makes no sense."""
    windows = [_window(path, record) for record in rows]
    starts = sorted({window.start_ns for window in windows})
    window_ns = min((b - a for a, b in pairwise(starts)), default=WINDOW_NS)
    active = tuple(window for window in windows if window.rate_per_s > 0)
    facts = {
        "source": str(path),
        "format": "clients",
        "rows_read": len(windows),
        "rows_skipped": {"silent_window": len(windows) - len(active)},
    }
    return ClientTable(active, starts[0], window_ns, facts)


def _window(path: Path, record: Record) -> Window:
    fields = record.fields
    try:
        rate = float(number(fields, "rate"))
        window = Window(
            client=str(fields["client"]),
            start_ns=instant_ns(fields, "window_start_s", unit_ns=NS_PER_S),
            rate_per_s=rate,
            pattern=str(fields["pattern"]),
            shape=float(number(fields, "arg1")),
        )
        _refuse_nonsense(window)
    except ValueError as error:
        raise TraceError(f"{path}, line {record.line}: {error}") from error
    return window


def _refuse_nonsense(window: Window) -> None:
    if window.rate_per_s < 0:
        raise ValueError(f"rate is {window.rate_per_s}, below 0")
    if window.rate_per_s > 0 and window.pattern not in _DRAWS:
        raise ValueError(f"pattern is {window.pattern!r}, not one of {', '.join(_DRAWS)}")
    if window.rate_per_s > 0 and window.shape <= 0:
        raise ValueError(f"arg1 is {window.shape}, not a shape above 0")


def _window_instants(window: Window, window_ns: int, rng: np.random.Generator) -> Column:
    """Exactly rate x window arrivals (the published rates are counts over the window), their gaps
    drawn by the pattern and stretched to fill it.

    Walking from the window's start until its end instead gives bursty clients too many: an
    arrival epoch at the start adds (CV^2 - 1) / 2 of them, 11 % at CV 12 and 1 request/s.
    """
    requests = math.floor(window.rate_per_s * window_ns / NS_PER_S + rng.random())
    gaps = _DRAWS[window.pattern](rng, window.shape, requests + 1)
    shares = np.cumsum(gaps)[:-1] / max(gaps.sum(), np.finfo(float).tiny)
    return np.asarray(window.start_ns + np.floor(shares * window_ns), dtype=np.int64)
