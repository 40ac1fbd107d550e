"""Enumerations of the vocabulary. A value is the word used in Python, SQL and labels alike.

On the wire a word is its code: the position in its class, from 1 (0 says "none"). Classes only
ever grow at the end, so a code never changes its meaning and SCHEMA_VERSION need not change.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

E = TypeVar("E", bound="Word")


class Word(str, Enum):
    """A lower-case word with a wire code."""

    @property
    def code(self) -> int:
        """Position in the class, from 1."""
        return list(type(self)).index(self) + 1

    def __str__(self) -> str:
        return str(self.value)


def codes(words: type[E]) -> dict[E, int]:
    """Word -> wire code, for adapters to look up once at attach."""
    return {word: i for i, word in enumerate(words, start=1)}


def words(kind: type[Word]) -> list[str | None]:
    """Wire code -> word, as a list to index: [None, first, second, ...]."""
    return [None, *(word.value for word in kind)]


class Phase(Word):
    """Of a member prefill or decode; of an iteration also mixed or empty."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    EMPTY = "empty"


class DeferralReason(Word):
    """Why a waiting request was left out of a scheduling decision, normalised over engines."""

    TOKEN_BUDGET = "token_budget"  # noqa: S105
    MAX_REQUESTS = "max_requests"
    KV_BLOCKS = "kv_blocks"
    KV_WATERMARK = "kv_watermark"
    PREEMPTION = "preemption"
    CHUNK_POLICY = "chunk_policy"
    PREFILL_THROTTLE = "prefill_throttle"
    LORA = "lora"
    GRAMMAR = "grammar"
    TRANSFER = "transfer"
    CACHE_PREFETCH = "cache_prefetch"
    PAUSED = "paused"
    POLICY = "policy"
    UNKNOWN = "unknown"


MEANINGS = {
    DeferralReason.TOKEN_BUDGET: "the token budget was used up, by decodes or by prompts",
    DeferralReason.MAX_REQUESTS: "as many requests run as may run at once",
    DeferralReason.KV_BLOCKS: "too few free KV blocks for it",
    DeferralReason.KV_WATERMARK: "enough free blocks, but some are held back from new requests",
    DeferralReason.PREEMPTION: "a running request lost its place in this very decision, and such a"
    " decision admits nobody",
    DeferralReason.CHUNK_POLICY: "its next piece may not be cut as small as what was left",
    DeferralReason.PREFILL_THROTTLE: "prompts are held back for the sake of running decodes",
    DeferralReason.LORA: "as many LoRA adapters are in use as may be in one batch",
    DeferralReason.GRAMMAR: "the grammar of its structured output is not compiled yet",
    DeferralReason.TRANSFER: "its KV is on the way from another engine, or pages that it needs wait"
    " to be taken by one",
    DeferralReason.CACHE_PREFETCH: "its prefix is being fetched from a slower cache",
    DeferralReason.PAUSED: "the scheduler is paused",
    DeferralReason.POLICY: "the policy put others first, or forbids it otherwise",
    DeferralReason.UNKNOWN: "the engine does not reveal why; never a guess",
}
"""What a waiting request lacked, as a sentence's second half."""

GLOBAL_REASONS = frozenset(
    {
        DeferralReason.TOKEN_BUDGET,
        DeferralReason.MAX_REQUESTS,
        DeferralReason.PAUSED,
        DeferralReason.PREEMPTION,
    }
)
"""Reasons that hold for every unskipped waiter alike; the others hold for the head of the queue,
and those behind it wait at position `behind`, for the same root cause."""


class Position(Word):
    """Where a deferred request stood when it was left out."""

    HEAD = "head"
    BEHIND = "behind"
    SKIPPED = "skipped"
    GLOBAL = "global"


class FinishReason(Word):
    """Why a request left. Every arrival gets exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    SHED = "shed"
    UNKNOWN = "unknown"


class PreemptMode(Word):
    """What becomes of a preempted request's KV."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Role(Word):
    """What the process that owns a ring does."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"
    FRONTEND = "frontend"


class GraphMode(Word):
    """How the engine launched the forward pass, where it tells."""

    EAGER = "eager"
    PIECEWISE = "piecewise"
    FULL = "full"


class Direction(Word):
    """Of a KV transfer, seen from the ring's own engine."""

    IN = "in"
    OUT = "out"


class Component(Word):
    """Parts of a gap between two tokens; they sum to it exactly."""

    FLOOR = "floor"
    DILUTION = "dilution"
    PREFILL = "prefill"
    OWN_PREFILL = "own_prefill"
    HOST = "host"
    PIPELINE = "pipeline"
    ABSENT = "absent"
    UNEXPLAINED = "unexplained"


class NoticeKind(Word):
    """What an adapter has to say about itself."""

    FAULT = "fault"
    MISSING_SEAM = "missing_seam"
    OVER_BUDGET = "over_budget"
    DETACHED = "detached"
    DROPPED = "dropped"
    CONFIG = "config"
    INFO = "info"


class Provides(Word):
    """How far an adapter can see a field."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    ABSENT = "absent"


class Verdict(Word):
    """Judgement of one request against one SLO."""

    MET = "met"
    MISSED = "missed"
    UNDETERMINED = "undetermined"
    FAILED = "failed"
    ABORTED = "aborted"
    SHED = "shed"
