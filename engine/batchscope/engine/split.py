"""Prefill and decode on an engine each, in virtual time, as DistServe (OSDI 2024) splits them.

Feed-forward: prompts run on one engine, their KV crosses one link first come, first served, and the
rest of the tokens come from the other. There is no back-pressure: the prefill engine gives up its
pages when the prompt is done, as if the link had a buffer without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from batchscope.engine.config import EngineConfig
from batchscope.engine.virtual import Arriving, Simulation


class Link(NamedTuple):
    """What the KV crosses: `latency_ns` a transfer, then bytes at a rate."""

    bytes_per_s: float = 25e9
    latency_ns: int = 100_000
    kv_bytes_per_token: int = 131_072

    def transfer_ns(self, tokens: int) -> int:
        """How long the KV of so many tokens takes."""
        return self.latency_ns + round(tokens * self.kv_bytes_per_token / self.bytes_per_s * 1e9)


class Row(NamedTuple):
    """An arrival at one of the two engines."""

    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    abort_after_ns: int | None = None


class Split(NamedTuple):
    """Both runs; the first token of a request is the prefill engine's, all others the decode's."""

    prefill: Simulation
    decode: Simulation


def run_split(
    arrivals: Iterable[Arriving],
    *,
    prefill: EngineConfig,
    decode: EngineConfig,
    link: Link | None = None,
    observed: Callable[[Simulation], object] | None = None,
) -> Split:
    """Serve patient clients on two engines; who wants one token never leaves the first. `observed`
    is handed both before they run.
    """
    wanted = {arrival.ordinal: arrival for arrival in arrivals}
    first, rest = Simulation(prefill), Simulation(decode)
    if observed is not None:
        observed(first)
        observed(rest)
    first.run(_only_first(row) for row in wanted.values())
    made = {served.seq.request_id: served.seq.output for served in first.served}
    rest.run(
        _handed_over(first, wanted, link or Link()),
        generated=lambda arrival: made[f"r{arrival.ordinal}"],
    )
    return Split(first, rest)


def _only_first(arrival: Arriving) -> Row:
    return Row(arrival.ordinal, arrival.at_ns, arrival.prompt_tokens, 1)


def _handed_over(first: Simulation, wanted: dict[int, Arriving], link: Link) -> list[Row]:
    """When each request's KV is there, in the order in which prompts were done."""
    done = sorted(
        (served.token_ns[0], arrival)
        for served, arrival in zip(first.served, wanted.values(), strict=True)
        if arrival.output_tokens > 1
    )
    rows, free_ns = [], 0
    for ready_ns, arrival in done:
        free_ns = max(free_ns, ready_ns) + link.transfer_ns(arrival.prompt_tokens)
        rows.append(Row(arrival.ordinal, free_ns, arrival.prompt_tokens, arrival.output_tokens))
    return rows
