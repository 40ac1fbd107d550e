"""What this engine can never serve: refused at the door, before it counts as an arrival."""

from __future__ import annotations

from batchscope.engine.config import EngineConfig
from batchscope.engine.sequence import Sequence


class RequestRejected(ValueError):  # noqa: N818  (what happened, in the words of a client)
    """The request can never run on this engine; it did not enter and is not counted."""


def check_request(config: EngineConfig, seq: Sequence) -> None:
    """Raise RequestRejected when `seq` could never run. Reads only what never changes: any thread.

    The watermark is kept out of admissions, so it is no room for a request that is alone either.
    """
    most = len(seq.prompt) + seq.max_tokens
    pool = (config.num_blocks - config.watermark_blocks) * config.block_size
    refusals = {
        "the prompt is empty": not seq.prompt,
        "max_tokens must be at least 1": seq.max_tokens < 1,
        f"prompt + max_tokens is {most}, above max_model_len {config.max_model_len}": most
        > config.max_model_len,
        f"prompt + max_tokens is {most}, the KV pool has room for {pool}": most > pool,
        f"token ids must be in 0..{config.model.vocab_size - 1}": not _in_vocabulary(config, seq),
    }
    for why, applies in refusals.items():
        if applies:
            raise RequestRejected(f"{seq.request_id}: {why}")


def _in_vocabulary(config: EngineConfig, seq: Sequence) -> bool:
    # an id beyond the embedding would fail the whole batch; the cost model takes any integers
    if config.runner == "cost":
        return True
    return 0 <= min(seq.prompt, default=0) <= max(seq.prompt, default=0) < config.model.vocab_size
