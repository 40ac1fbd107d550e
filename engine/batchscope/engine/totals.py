"""The engine's own counters: plain integers, added where the thing happens, by nobody else.

They owe nothing to any observer, so an observer's figures can be checked against them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchscope.engine.batch import Batch
from batchscope.engine.hop import Hop
from batchscope.engine.sequence import FinishReason


@dataclass(slots=True)
class Totals:
    """Everything since the engine started; tokens are scheduled tokens but for output and cached.

    `recomputed` is part of `prefill`: the prefill of re-admissions after preemption. `cached` are
    prompt tokens found in the prefix cache at first admission. `deferrals` adds, per reason, the
    requests left waiting at each decision. `hops` are KV transfers that ended here, failed ones
    apart; `hop_blocks` and `hop_bytes` went with them.
    """

    iterations: int = 0
    member_steps: int = 0
    arrived: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    prefill: int = 0
    decode: int = 0
    output: int = 0
    cached: int = 0
    recomputed: int = 0
    preemptions: int = 0
    hops: int = 0
    hops_failed: int = 0
    hop_blocks: int = 0
    hop_bytes: int = 0
    deferrals: dict[str, int] = field(default_factory=dict)

    def decided(self, batch: Batch, *, waiting: int) -> None:
        """Count one decision and the `waiting` requests it left out."""
        self.iterations += 1
        self.member_steps += len(batch.members)
        self.prefill += batch.num_prefill_tokens
        self.decode += batch.num_decode_tokens
        self.recomputed += batch.num_recomputed_tokens
        if batch.stop is not None:
            reason = batch.stop.value
            self.deferrals[reason] = self.deferrals.get(reason, 0) + waiting

    def ended(self, reason: FinishReason) -> None:
        """Count the one end of a request."""
        if reason is FinishReason.ABORT:
            self.aborted += 1
        elif reason is FinishReason.ERROR:
            self.failed += 1
        else:
            self.finished += 1

    def hopped(self, hop: Hop) -> None:
        """Count a KV transfer."""
        if hop.failed:
            self.hops_failed += 1
        else:
            self.hops += 1
            self.hop_blocks += hop.blocks or 0
            self.hop_bytes += hop.nbytes or 0

    def as_dict(self) -> dict[str, Any]:
        """The counters under the names that a summary prints; `live` have arrived and not ended."""
        live = self.arrived - self.finished - self.aborted - self.failed
        tokens = ("prefill", "decode", "output", "cached", "recomputed")
        ends = ("arrived", "finished", "aborted", "failed")
        return {
            "iterations": self.iterations,
            "member_steps": self.member_steps,
            "requests": {name: getattr(self, name) for name in ends} | {"live": live},
            "tokens": {name: getattr(self, name) for name in tokens},
            "preemptions": self.preemptions,
            "deferrals": dict(self.deferrals),
        }
