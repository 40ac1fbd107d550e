"""Who goes into a batch, one small class per idea of the literature.

A policy decides the order and the bounds; the mechanism (place, admit, preempt, hold) is the
scheduler's. Whoever waits does so first come, first served: nobody overtakes the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batchscope.engine.batch import Batch, StopReason
from batchscope.engine.sequence import Sequence

if TYPE_CHECKING:
    from batchscope.engine.scheduler import Scheduler


class Policy(Protocol):
    """Fills one batch from the scheduler's running list and waiting queue.

    `holds_slots`: whoever ends while running keeps slot and blocks until nobody runs any more.
    """

    holds_slots: bool

    def budget(self, scheduler: Scheduler) -> int | None:
        """Most tokens a batch may have; None when the policy knows no such bound."""

    def reserved(self, scheduler: Scheduler, seq: Sequence) -> int:
        """Tokens that get their blocks at admission; 0 when blocks come as they are needed."""

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Place members; why requests are still waiting, None when none is."""

    def full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Why the head of the queue may not be looked at, blocks apart."""


class Static:
    """Request-level batching: a batch is admitted together and held until its last member ends.

    The rule of FasterTransformer and of the serving systems that Orca (OSDI 2022, section 2) starts
    from: the longest output decides for all, early finishers keep slot and blocks, and each is
    given the blocks of the longest request possible.
    """

    holds_slots = True

    def budget(self, scheduler: Scheduler) -> None:
        """None: prompts run whole, all at once."""

    def reserved(self, scheduler: Scheduler, seq: Sequence) -> int:  # noqa: ARG002
        """The longest that any request may become."""
        return scheduler.config.max_model_len

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Go on with the batch under way, or form the next one."""
        if not scheduler.running:
            return scheduler.admit_waiting(batch)
        scheduler.place_running(batch)
        return StopReason.BATCH_HELD if scheduler.waiting else None

    def full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:  # noqa: ARG002
        """Slots are the only bound."""
        return slots_taken(scheduler)


class Orca:
    """Iteration-level scheduling: who ends leaves at once, who waits joins at the next iteration.

    Whole prompts run beside decodes, and the blocks of all tokens to come are reserved at admission
    (Orca, OSDI 2022, algorithm 1), so that nobody is ever preempted. `EngineConfig.reservation`
    says whether a request's own limit is reserved or the longest possible.
    """

    holds_slots = False

    def budget(self, scheduler: Scheduler) -> None:
        """None: slots and reservations are the only bounds."""

    def reserved(self, scheduler: Scheduler, seq: Sequence) -> int:
        """All tokens that the request may have, or that any may."""
        if scheduler.config.reservation == "max_model_len":
            return scheduler.config.max_model_len
        return len(seq.prompt) + seq.max_tokens

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Place all running requests, then admit whole prompts beside them."""
        scheduler.place_running(batch)
        return scheduler.admit_waiting(batch)

    def full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:  # noqa: ARG002
        """Slots are the only bound."""
        return slots_taken(scheduler)


class Paged:
    """Prefill first: while a prompt can be admitted, prompts alone run and all decodes stall.

    vLLM's scheduler up to 0.5 (PagedAttention, SOSP 2023): blocks as they are needed, a watermark
    against admissions that would be preempted at once, preemption of the latest by recompute. Its
    budget bounds a batch of prompts and, as there, is never below the longest request.
    """

    holds_slots = False

    def budget(self, scheduler: Scheduler) -> int:
        """Tokens of a batch of whole prompts."""
        return scheduler.config.prefill_budget

    def reserved(self, scheduler: Scheduler, seq: Sequence) -> int:  # noqa: ARG002
        """Nothing ahead of need."""
        return 0

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Prompts if any can enter, else one token of each running request."""
        stop = scheduler.admit_waiting(batch)
        if batch.members:
            return stop
        scheduler.place_running(batch)
        return StopReason.PREEMPTED_THIS_STEP if batch.preempted else stop

    def full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Slots, then room for the head's whole prompt."""
        if scheduler.waiting[0].num_tokens > batch.left:
            return slots_taken(scheduler) or StopReason.TOKEN_BUDGET
        return slots_taken(scheduler)


class Chunked:
    """Stall-free batching: prompts are cut so that decodes never wait for a whole one.

    Decodes first, then the prompt that is under way, then new chunks, inside one token budget
    (Sarathi-Serve, OSDI 2024, section 4).

    The running list is already in that order. A request is admitted only while budget is left, so
    a prompt that doesn't fit whole ends the admissions and is the last of the list until done; and
    since everyone running gets at least a token before anyone is admitted, running never outgrows
    the budget and each running request is a member of each batch.
    """

    holds_slots = False

    def budget(self, scheduler: Scheduler) -> int:
        """The configured tokens per iteration."""
        return scheduler.config.max_num_batched_tokens

    def reserved(self, scheduler: Scheduler, seq: Sequence) -> int:  # noqa: ARG002
        """Nothing ahead of need."""
        return 0

    def fill(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Place all running requests, then admit from the head of the queue."""
        scheduler.place_running(batch)
        if batch.preempted:
            return StopReason.PREEMPTED_THIS_STEP
        return scheduler.admit_waiting(batch)

    def full(self, batch: Batch, scheduler: Scheduler) -> StopReason | None:
        """Budget, then slots."""
        return StopReason.TOKEN_BUDGET if batch.left <= 0 else slots_taken(scheduler)


def slots_taken(scheduler: Scheduler) -> StopReason | None:
    """MAX_SEQS when as many run as may."""
    if len(scheduler.running) >= scheduler.config.max_num_seqs:
        return StopReason.MAX_SEQS
    return None


POLICIES: dict[str, type[Policy]] = {
    "static": Static,
    "orca": Orca,
    "paged": Paged,
    "chunked": Chunked,
}
