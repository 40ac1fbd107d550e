"""One replay: run, told as a table or JSON, kept as Parquet, handed to the exporter."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from batchscope.exporter.cli import exporter_client, handing, tabled
from batchscope.exporter.cli.playing import Player
from batchscope.schemas.slo import Slo
from batchscope.workload import judged
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.replay import Played
from batchscope.workload.trace import Trace
from batchscope.workload.traffic import Wish, traffic


def run(args: argparse.Namespace, player: Player, wish: Wish, slo: Slo | None) -> int:
    """Replay once; 1 when not one request that counts was answered."""
    trace, terms = traffic(wish), judged.Terms(slo, warm_up_ns=round(args.warm_up * 1e9))
    to_unix_ns = time.time_ns() - time.monotonic_ns()
    seen = player.play(trace, word="sending")
    told = report(seen, player.target, trace, terms)
    if args.output:
        _keep(args, seen, told, terms)
    try:
        if args.post:
            handed = handing.HandIn(exporter_client.url_of(args), seen, to_unix_ns, terms)
            told["run"], told["beside_engine"] = handed.run, handed.all(told, name=args.name)
            told["recorded_by"] = handed.recorded_by
    finally:  # an hour's figures, also when the exporter has gone meanwhile
        print(json.dumps(told) if args.json else "\n".join(tabled.lines(told)))
    return 0 if answered(seen, terms) else 1


def answered(seen: Played, terms: judged.Terms) -> bool:
    """Whether one that counts was, or all left as the trace wanted. Of a run that ended within its
    warm-up all count.
    """
    counted = terms.counted(seen.outcomes, start_ns=seen.start_ns) or seen.outcomes
    ends = {one.status for one in counted}
    return Status.OK in ends or ends == {Status.LEFT}


def report(seen: Played, target: str, trace: Trace, terms: judged.Terms) -> dict[str, Any]:
    """All figures of a replay, JSON-able."""
    counted = terms.counted(seen.outcomes, start_ns=seen.start_ns)
    return {
        "target": target,
        "traffic": trace.metadata(),
        "came_due": len(seen.outcomes),
        "warm_up_ns": terms.warm_up_ns,
        "interrupted": seen.interrupted,
        "most_under_way": seen.most_under_way,
        "under_way_cap": seen.cap,
        **judged.summary(counted, since_ns=seen.start_ns + terms.warm_up_ns, slo=terms.slo),
        "reasons": _reasons(counted),
    }


def _reasons(counted: Sequence[Outcome]) -> dict[str, str]:
    """For each bad end the first sentence that was heard."""
    said: dict[str, str] = {}
    for one in counted:
        if one.why:
            said.setdefault(str(one.status), one.why)
    return said


def _keep(
    args: argparse.Namespace, seen: Played, told: Mapping[str, Any], terms: judged.Terms
) -> None:
    from batchscope.workload import parquet

    rows = [parquet.row(one, terms, start_ns=seen.start_ns) for one in seen.outcomes]
    parquet.write(args.output, rows, facts=told)
