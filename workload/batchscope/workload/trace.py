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

    def metadata(self) -> dict[str, Any]:
        """What a run's record should say about its traffic; JSON-able."""
        return {**self.facts, "requests": len(self), "duration_ns": self.duration_ns}


def head(trace: Trace, requests: int) -> Trace:
    """The first `requests` arrivals of a trace (all when there are fewer)."""
    return replace(
        trace,
        at_ns=trace.at_ns[:requests],
        prompt_tokens=trace.prompt_tokens[:requests],
        output_tokens=trace.output_tokens[:requests],
        prefix=trace.prefix[:requests] if trace.prefix is not None else None,
        session=trace.session[:requests] if trace.session is not None else None,
        model=trace.model[:requests] if trace.model is not None else None,
        abort_after_ns=trace.abort_after_ns[:requests]
        if trace.abort_after_ns is not None
        else None,
    )


def _abort(column: Column | None, row: int) -> int | None:
    if column is None or column[row] == NEVER_NS:
        return None
    return int(column[row])
