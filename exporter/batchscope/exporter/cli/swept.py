"""`batchscope replay --sweep`: replays at one rate after another until capacity is bracketed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from batchscope.exporter.cli import spoken
from batchscope.exporter.cli.played import report
from batchscope.exporter.cli.playing import Player
from batchscope.exporter.cli.tabled import share
from batchscope.schemas.slo import Slo
from batchscope.workload import judged
from batchscope.workload.outcome import Outcome
from batchscope.workload.shape import at_rate
from batchscope.workload.sweep import Capacity, Point, Search, capacity, reaches
from batchscope.workload.trace import Trace
from batchscope.workload.traffic import Wish, traffic

FIRST_PER_S, POINT_S = 1.0, 60.0
DRAWN_REQUESTS = 2_000
"""Of a law or preset; a point that needs more begins anew."""
FEWEST_REQUESTS = 2
"""Of a point, however low its rate: one has no rate."""
FEW_REQUESTS = 100
"""Below it one request more or less moves the attainment by more than a hundredth."""
_LOST = ("missed", "failed", "shed")


def run(args: argparse.Namespace, player: Player, wish: Wish, slo: Slo) -> int:
    """Sweep, print every point and the bracket; 1 when no rate reached what is wanted."""
    first = args.rate or FIRST_PER_S
    drawn = replace(
        wish, rate_per_s=first, duration_s=None, requests=args.requests or DRAWN_REQUESTS
    )
    trace = traffic(drawn)
    search = Search(args.sweep, first, precision=args.precision, most_points=args.most_points)
    terms = judged.Terms(slo, warm_up_ns=round(args.warm_up * 1e9))
    sweep = _Sweep(args, player, trace, terms)
    found = capacity(search, sweep.measure)
    told = _told(found, search, slo, player.target, trace)
    print(json.dumps(told) if args.json else _sentence(told))
    return 0 if found.low_per_s is not None else 1


@dataclass
class _Sweep:
    """Plays the same trace at the rates that are asked for."""

    args: argparse.Namespace
    player: Player
    trace: Trace
    terms: judged.Terms

    def measure(self, rate_per_s: float) -> Point:
        """One point, said on stderr."""
        wanted = round(rate_per_s * (self.args.duration or POINT_S))
        requests = max(FEWEST_REQUESTS, wanted)
        offered = at_rate(self.trace, rate_per_s, requests=requests)
        first = int(offered.at_ns.searchsorted(self.terms.warm_up_ns))
        hope = _Hope(self.terms, wanted=self.args.sweep, first=first, counted=len(offered) - first)
        word = f"{rate_per_s:.3g}/s"
        seen = self.player.play(offered, word=word, heard=hope)
        if seen.interrupted and not hope.lost:
            raise KeyboardInterrupt
        told = report(seen, self.player.target, offered, self.terms)
        attainment = hope.at_most if hope.lost else told["goodput"]["attainment"]
        more = {**told, "to_count": hope.counted, "ended_early": hope.lost}
        point = Point(rate_per_s, attainment, more, fewest=wanted <= FEWEST_REQUESTS)
        print(_line(point, self.args.sweep), file=sys.stderr, flush=True)
        return point


@dataclass
class _Hope:
    """Whether a point can still reach what is wanted. `lost` once it can't: what is met is then at
    most `at_most` of what could be judged. Requests before `first` are the warm-up.
    """

    terms: judged.Terms
    wanted: float
    first: int
    counted: int
    missed: int = 0
    lost: bool = field(default=False)

    def __call__(self, outcome: Outcome) -> bool:
        if outcome.arrival.ordinal >= self.first:
            self.missed += self.terms.verdict(outcome) in _LOST
            self.lost = self.at_most < self.wanted
        return self.lost

    @property
    def at_most(self) -> float:
        return 1 - self.missed / self.counted if self.counted else 0.0


def _line(point: Point, wanted: float) -> str:
    more, reached = point.more, "reaches" if reaches(point, wanted) else "misses"
    attained = ("at most " if more["ended_early"] else "") + share(point.attainment)
    seen = (more[f"{name}_ns"] or {"p99": None} for name in ("ttft", "tbt"))
    first, between = (spoken.duration(one["p99"]) for one in seen)
    return (
        f"{point.rate_per_s:>8.4g}/s  {reached} {wanted:g}: attainment {attained} of"
        f" {more['requests']:,} requests; p99 ttft {first}, tbt {between}"
    )


def _told(found: Capacity, search: Search, slo: Slo, target: str, trace: Trace) -> dict[str, Any]:
    points = [
        {"rate_per_s": point.rate_per_s, "attainment": point.attainment, **point.more}
        for point in sorted(found.points, key=lambda point: point.rate_per_s)
    ]
    return {
        "target": target,
        "slo": str(slo),
        "wanted": search.wanted,
        "capacity_per_s": found.low_per_s,
        "missed_at_per_s": found.high_per_s,
        "precise": found.whole,
        "bottomed": found.bottomed,
        "traffic": trace.metadata(),
        "points": [{k: v for k, v in point.items() if k != "traffic"} for point in points],
    }


def _sentence(told: dict[str, Any]) -> str:
    return "\n".join([_bracket(told), *_caveats(told)])


def _caveats(told: dict[str, Any]) -> Iterator[str]:
    """What the figure should not be taken for."""
    ends = (told["capacity_per_s"], told["missed_at_per_s"])
    least = min(one["to_count"] for one in told["points"] if one["rate_per_s"] in ends)
    if told["bottomed"]:
        again = f"a lower rate would offer the same {FEWEST_REQUESTS} requests again"
        yield f"{again}: a longer --duration gives it more"
    elif least < FEW_REQUESTS:
        yield f"it rests on as few as {least} requests: a longer --duration makes it surer"


def _bracket(told: dict[str, Any]) -> str:
    low, high, wanted = told["capacity_per_s"], told["missed_at_per_s"], f"{told['wanted']:g}"
    measured = f"{spoken.plural(len(told['points']), 'point')} measured"
    if low is None:
        return f"no rate reached {wanted} of {told['slo']}, not even {high:.4g}/s; {measured}"
    if high is None:
        return f"capacity at least {low:.4g}/s: every rate tried reached {wanted}; {measured}"
    wide = "" if told["precise"] else ", wider than was asked for"
    return (
        f"capacity {low:.4g}/s: {wanted} of the requests met {told['slo']} there, and not at"
        f" {high:.4g}/s{wide}; {measured}"
    )
