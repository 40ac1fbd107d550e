"""Who goes into a batch, one small class per idea of the literature.

A policy decides the order; the mechanism (place, admit, preempt) is the scheduler's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batchscope.engine.batch import Batch, StopReason

if TYPE_CHECKING:
    from batchscope.engine.scheduler import Scheduler


class Policy(Protocol):
    """Fills one batch from the scheduler's running list and waiting queue."""

    def budget(self, scheduler: Scheduler) -> int | None:
        """Most tokens a batch may have; None when the policy knows no such bound."""

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Place members; why requests are still waiting, None when none is."""


class Chunked:
    """Stall-free batching: prompts are cut so that decodes never wait for a whole one.

    Decodes first, then the prompt that is under way, then new chunks, inside one token budget
    (Sarathi-Serve, OSDI 2024, section 4). First come, first served: nobody overtakes the head.

    The running list is already in that order. A request is admitted only while budget is left, so
    a prompt that doesn't fit whole ends the admissions and is the last of the list until done; and
    since everyone running gets at least a token before anyone is admitted, running never outgrows
    the budget and each running request is a member of each batch.
    """

    def budget(self, scheduler: Scheduler) -> int:
        """The configured tokens per iteration."""
        return scheduler.config.max_num_batched_tokens

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Place all running requests, then admit from the head of the queue."""
        scheduler.place_running(batch)
        if batch.preempted:
            return StopReason.PREEMPTED_THIS_STEP
        while scheduler.waiting:
            stop = self._full(batch, scheduler) or scheduler.admit(batch)
            if stop is not None:
                return stop
        return None

    def _full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        if batch.left <= 0:
            return StopReason.TOKEN_BUDGET
        if len(scheduler.running) >= scheduler.config.max_num_seqs:
            return StopReason.MAX_SEQS
        return None


POLICIES: dict[str, type[Policy]] = {"chunked": Chunked}
