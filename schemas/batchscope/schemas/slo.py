"""SLOs: named targets on a request's latencies, their spelling, and what a verdict means.

A verdict is joint: every term must hold. A term that can't be judged (time between tokens with
fewer than two tokens) makes it undetermined, never met. Used by the fold, the CLI and the API.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TERMS = ("ttft", "tbt_p50", "tbt_p90", "tbt_p95", "tbt_p99", "tbt_max", "tpot", "e2e")
"""Latencies an SLO can bound: exactly those that are stored per request, as `<term>_ns`."""

MOST_NS = dict.fromkeys(TERMS, 3_600_000_000_000) | dict.fromkeys(
    ("ttft", "e2e"), 30 * 86_400_000_000_000
)
"""Largest bounds: an hour, a month. A million tokens' deadlines then fit the 64 bits of a sum."""
_UNITS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TERM = re.compile(r"\s*([a-z0-9_]+)\s*<=?\s*([0-9.]+)\s*(us|ms|s)\s*$")


class SloError(ValueError):
    """An SLO that can't be understood; the message says which part and what is known."""


@dataclass(frozen=True)
class Slo:
    """Targets in nanoseconds by term, e.g. {"ttft": 2_000_000_000, "tbt_p99": 200_000_000}."""

    name: str
    targets: tuple[tuple[str, int], ...]
    version: int = 1

    @classmethod
    def parse(cls, text: str, *, name: str = "default") -> Slo:
        """From "ttft<=2s,tbt_p99<=200ms". Raises SloError."""
        terms = [_parse_term(part) for part in text.split(",") if part.strip()]
        targets = dict(terms)
        if not targets:
            raise SloError(f"an SLO needs at least one term of {', '.join(TERMS)}")
        if len(targets) < len(terms):
            raise SloError(f"{text.strip()!r} bounds a term twice")
        return cls(name, tuple(sorted(targets.items())))

    def target(self, term: str) -> int | None:
        """The bound on a term in ns, None when it isn't bounded."""
        return dict(self.targets).get(term)

    def __str__(self) -> str:
        """As parse() reads it, to the nanosecond: stored SLOs are told apart by it."""
        return ",".join(f"{term}<={_ms(ns)}ms" for term, ns in self.targets)

    @property
    def deadlines(self) -> tuple[int, int] | None:
        """(D_ttft, D_tbt) in ns: token i is on time until arrival + D_ttft + (i-1) D_tbt.

        D_tbt is the tightest bound on time between tokens or TPOT; None without both.
        """
        first = self.target("ttft")
        between = [ns for term, ns in self.targets if term.startswith("tbt") or term == "tpot"]
        return (first, min(between)) if first is not None and between else None


def _ms(ns: int) -> str:
    whole, part = divmod(ns, 1_000_000)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".")


def _parse_term(part: str) -> tuple[str, int]:
    match = _TERM.match(part)
    if match is None:
        raise SloError(
            f"can't read {part.strip()!r} as an SLO term; write it as ttft<=2s or tbt_p99<=200ms"
        )
    term, number, unit = match.groups()
    if term not in TERMS:
        raise SloError(f"unknown SLO term {term!r}; known: {', '.join(TERMS)}")
    try:
        ns = round(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise SloError(f"can't read {number!r} as a number in {part.strip()!r}") from None
    if not 0 < ns <= MOST_NS[term]:
        most = MOST_NS[term] // _UNITS["s"]
        raise SloError(f"{part.strip()!r} must be above 0 and at most {most}s")
    return term, ns


DEMO_SLO = Slo.parse("ttft<=2s,tbt_p99<=200ms", name="demo")
