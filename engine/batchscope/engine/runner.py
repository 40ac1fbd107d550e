"""What the engine asks of the thing that executes a batch."""

from __future__ import annotations

from typing import Protocol

from batchscope.engine.batch import Batch, Member


class Runner(Protocol):
    """Executes a batch and samples.

    Returns one token id for each member that reaches the end of its known tokens in this step, by
    request id. Raises whatever the device raises; the batch is then lost.
    """

    def run(self, batch: Batch) -> dict[str, int]:
        """Compute the members' tokens, then sample."""


def samples(member: Member) -> bool:
    """Whether this share completes the member's known tokens, so that a new one comes out."""
    return member.start + member.tokens == member.seq.num_tokens
