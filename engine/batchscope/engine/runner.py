"""What the engine asks of the thing that executes a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from batchscope.engine.batch import Batch, Member


class Runner(Protocol):
    """Executes a batch and samples.

    Returns one token id for each member that reaches the end of its known tokens in this step, by
    request id. Raises whatever the device raises; the batch is then lost.
    """

    def run(self, batch: Batch) -> dict[str, int]:
        """Compute the members' tokens, then sample."""


@runtime_checkable
class HasPages(Protocol):
    """A runner whose KV can be moved, block by block. Read and written between batches only."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block: keys and values of all layers."""

    def read_pages(self, blocks: Sequence[int]) -> bytes:
        """The content of `blocks`, one after the other."""

    def write_pages(self, blocks: Sequence[int], content: bytes) -> None:
        """Put what read_pages gave, of an equal model, into `blocks`."""


def samples(member: Member) -> bool:
    """Whether this share completes the member's known tokens, so that a new one comes out."""
    return member.start + member.tokens == member.seq.num_tokens
