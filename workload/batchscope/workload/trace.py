"""A trace: who arrives when, with how many tokens, sharing what.

Columns, because a day of traffic is millions of rows. Readers and presets make traces, `shape`
turns one into another, the driver hands out their rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]

#: In `Trace.abort_after_ns`: this client waits for ever. An Arrival says None.
NEVER_NS = 2**63 - 1


class TraceError(Exception):
    """A trace can't be used. The text is one sentence: which file, which line, why."""


class Arrival(NamedTuple):
    """One request as its client meant it.

    `prefix[j]` names the prompt's tokens [j * block_tokens, (j + 1) * block_tokens): the same id in
    two arrivals means the same tokens. Tokens beyond the last named block are the request's own.
    None: the source doesn't tell what is shared; (): it tells that nothing is.
    `ordinal` counts arrivals from 0; `at_ns` counts from the start of the trace and
    `abort_after_ns` from the arrival.
    """

    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] | None = None
    block_tokens: int | None = None
    session: str | None = None
    model: str | None = None
    abort_after_ns: int | None = None


@dataclass(frozen=True)
class Trace:
    """Arrivals in time order, one array element a request; equal instants are kept equal.

    `facts` is JSON-able: where the rows come from, what was left out, what was done to them.
    """

    at_ns: Column
    prompt_tokens: Column
    output_tokens: Column
    prefix: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int | None = None
    session: tuple[str | None, ...] | None = None
    model: tuple[str | None, ...] | None = None
    abort_after_ns: Column | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.at_ns)

    def __getitem__(self, row: int) -> Arrival:
        return Arrival(
            ordinal=row,
            at_ns=int(self.at_ns[row]),
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            prefix=self.prefix[row] if self.prefix is not None else None,
            block_tokens=self.block_tokens,
            session=self.session[row] if self.session is not None else None,
            model=self.model[row] if self.model is not None else None,
            abort_after_ns=_abort(self.abort_after_ns, row),
        )

    def __iter__(self) -> Iterator[Arrival]:
        return (self[row] for row in range(len(self)))

    @property
    def duration_ns(self) -> int:
        """From the start of the trace to its last arrival; 0 when it is empty."""
        return int(self.at_ns[-1]) if len(self) else 0

    @property
    def lap_ns(self) -> int:
        """The trace and a mean gap, so that repeating it keeps its rate. A trace of one instant has
        no gap: a second.
        """
        gaps = len(self) - 1
        return self.duration_ns + (self.duration_ns // gaps if gaps > 0 else 0) or 10**9

    def metadata(self) -> dict[str, Any]:
        """What a run's record should say about its traffic; JSON-able."""
        return {**self.facts, "requests": len(self), "duration_ns": self.duration_ns}


def head(trace: Trace, requests: int) -> Trace:
    """The first `requests` arrivals of a trace (all when there are fewer)."""
    return _taken(trace, np.arange(min(requests, len(trace))))


def repeated(trace: Trace, requests: int) -> Trace:
    """`requests` arrivals: the trace begins anew after its end, as often as needed. Raises
    TraceError when it is empty.
    """
    if not len(trace):
        raise TraceError("the trace has no arrival to offer")
    laps, rows = np.divmod(np.arange(requests), len(trace))
    taken = _taken(trace, rows)
    return replace(taken, at_ns=taken.at_ns + laps * trace.lap_ns)


def _taken(trace: Trace, rows: Column) -> Trace:
    """The named rows of every column."""
    columns = {name: getattr(trace, name) for name in _COLUMNS}
    return replace(trace, **{name: _rows(column, rows) for name, column in columns.items()})


_COLUMNS = (
    "at_ns",
    "prompt_tokens",
    "output_tokens",
    "prefix",
    "session",
    "model",
    "abort_after_ns",
)


def _rows(column: Any, rows: Column) -> Any:
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[rows]
    return tuple(column[row] for row in rows.tolist())


def _abort(column: Column | None, row: int) -> int | None:
    if column is None or column[row] == NEVER_NS:
        return None
    return int(column[row])
