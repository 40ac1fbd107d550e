"""One request on its way through the engine: its tokens, its KV blocks, its state.

Made by Engine.submit, changed by the scheduler alone, read by the runners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


class Status(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request left: its own stop token, its token limit, its client, a fault of ours."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(eq=False, slots=True)
class Sequence:
    """A request and everything the scheduler knows about it.

    `num_computed` counts the tokens whose KV is in the pool; `num_cached` those of them that the
    prefix cache gave at the latest admission. `target` is how many must be computed before the
    request may sample (again): the prompt, or prompt and generated tokens when it was preempted.
    The last generated token is never computed before the step that feeds it back.

    `received` counts KV tokens that another engine computed and that come with the request; its
    `output` then begins with what that engine generated. They are no prefill of ours, and after a
    preemption they are computed here.

    `on_token` is called on the engine's thread with each new token and must not raise.
    `*_ns` are readings of the engine's clock, None while the instant hasn't come.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    priority: int = field(default=0, kw_only=True)
    arrival_ns: int = field(kw_only=True)
    ignore_eos: bool = field(default=True, kw_only=True)
    tenant: str | None = field(default=None, kw_only=True)
    trace_context: tuple[bytes, bytes] | None = field(default=None, kw_only=True)
    on_token: Callable[[int], None] | None = field(default=None, kw_only=True)
    received: int = field(default=0, kw_only=True)

    status: Status = field(default=Status.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    output: list[int] = field(default_factory=list, init=False)
    target: int = field(default=0, init=False)
    num_computed: int = field(default=0, init=False)
    num_cached: int = field(default=0, init=False)
    num_preemptions: int = field(default=0, init=False)
    block_table: list[int] = field(default_factory=list, init=False)
    block_keys: list[bytes] = field(default_factory=list, init=False)
    first_token_ns: int | None = field(default=None, init=False)
    finished_ns: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.target = len(self.prompt)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt) + len(self.output)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Token ids at positions [start, stop) of prompt and output, without joining the two."""
        prompt = len(self.prompt)
        return self.prompt[start:stop] + self.output[max(start - prompt, 0) : max(stop - prompt, 0)]
