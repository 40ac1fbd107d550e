"""One scheduling decision as data: who takes part with how many tokens, and who was left out.

Made by the scheduler, priced or executed by a runner, then handed back to Scheduler.update.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from batchscope.engine.sequence import Sequence


class StopReason(Enum):
    """Why admission ended with requests still waiting."""

    TOKEN_BUDGET = "token_budget"  # noqa: S105  (a token of text)
    MAX_SEQS = "max_seqs"
    NO_BLOCKS = "no_blocks"
    WATERMARK = "watermark"
    PREEMPTED_THIS_STEP = "preempted_this_step"
    BATCH_HELD = "batch_held"
    ADMIT_DELAY = "admit_delay"
    ADMIT_MIN_FREE = "admit_min_free"
    UNACCEPTED = "unaccepted"


class Member(NamedTuple):
    """A sequence's share of a batch: positions [start, start + tokens) are computed.

    Prefill is whatever lies before the sequence's target, recompute after preemption included.
    """

    seq: Sequence
    start: int
    tokens: int
    is_prefill: bool


class Launched(NamedTuple):
    """How a runner launched a batch: of how many `tokens`, padding included, and whether as a graph
    of the device.
    """

    tokens: int
    graph: bool


@dataclass(slots=True)
class Batch:
    """The members of one iteration in schedule order, and what the decision left undone.

    `stop` is None exactly when the queue was emptied; else `stop_head` is the waiting request at
    which the scan ended. `preempted` pairs each victim with the computed tokens it lost.
    `budget` is None under a policy without one, `launched` until a runner that launches anything
    has run it.
    """

    step: int
    budget: int | None
    members: list[Member] = field(default_factory=list)
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_recomputed_tokens: int = 0
    stop: StopReason | None = None
    stop_head: Sequence | None = None
    preempted: list[tuple[Sequence, int]] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    launched: Launched | None = None

    @property
    def num_tokens(self) -> int:
        """All tokens computed in this iteration."""
        return self.num_prefill_tokens + self.num_decode_tokens

    @property
    def left(self) -> int:
        """Tokens that the budget still allows."""
        return sys.maxsize if self.budget is None else self.budget - self.num_tokens

    def add(self, seq: Sequence, tokens: int) -> None:
        """Append a member that computes the next `tokens` tokens of `seq`."""
        is_prefill = seq.num_computed < seq.target
        self.members.append(Member(seq, seq.num_computed, tokens, is_prefill))
        if not is_prefill:
            self.num_decode_tokens += tokens
            return
        self.num_prefill_tokens += tokens
        if seq.num_preemptions:
            self.num_recomputed_tokens += tokens
