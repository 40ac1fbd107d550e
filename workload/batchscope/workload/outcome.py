"""What became of one request, as its client saw it. Filled by `client`, judged by `judged`."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum

from batchscope.schemas.reasons import Verdict
from batchscope.workload.trace import Arrival


class Status(str, Enum):
    """How a request ended."""

    OK = "ok"  # the answer came to its end
    SHED = "shed"  # 429 or 503: the server takes no more
    REFUSED = "refused"  # another 4xx: the server will never serve this
    FAILED = "failed"  # 5xx, or an error within the stream
    UNREACHABLE = "unreachable"  # no connection
    TIMEOUT = "timeout"  # no end within the time that was given
    BROKEN = "broken"  # the connection or the stream ended before the answer did
    LEFT = "left"  # its client vanished, as the trace says
    UNSENT = "unsent"  # as many were under way as may: never sent
    CUT = "cut"  # the run was interrupted

    def __str__(self) -> str:
        return str(self.value)


#: The verdict on a request that did not end well; the others are judged by their latencies.
ENDED_BADLY = {
    Status.SHED: Verdict.SHED,
    Status.UNSENT: Verdict.SHED,
    Status.LEFT: Verdict.ABORTED,
    Status.CUT: Verdict.UNDETERMINED,
    **dict.fromkeys(
        (Status.REFUSED, Status.FAILED, Status.UNREACHABLE, Status.TIMEOUT, Status.BROKEN),
        Verdict.FAILED,
    ),
}


@dataclass(slots=True)
class Outcome:
    """One request. Instants are nanoseconds of the client's monotonic clock, None: not reached.

    `scheduled_ns` is when the trace says that it comes: every latency counts from there, so that a
    client which is late itself can't hide the wait. `token_ns` has an instant per token where the
    server tells ids, else one per piece of the stream that carried text; tokens of one piece share
    theirs. `prompt_tokens` and `output_tokens` are the server's own count (usage). `echoed_id` is
    the X-Request-Id of the answer, `answer_id` the id in its body. `cut`: we hung up, not its
    client.
    """

    arrival: Arrival
    request_id: str
    scheduled_ns: int
    sent_ns: int | None = None
    ended_ns: int | None = None
    status: Status = Status.UNSENT
    http_status: int | None = None
    why: str = ""
    echoed_id: str | None = None
    answer_id: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cut: bool = False
    token_ns: array[int] = field(default_factory=lambda: array("q"))

    @property
    def first_ns(self) -> int | None:
        """When the first token came."""
        return self.token_ns[0] if self.token_ns else None

    @property
    def last_ns(self) -> int | None:
        """When the newest token came."""
        return self.token_ns[-1] if self.token_ns else None

    @property
    def ttft_ns(self) -> int | None:
        """Scheduled instant to first token."""
        return self.token_ns[0] - self.scheduled_ns if self.token_ns else None

    @property
    def e2e_ns(self) -> int | None:
        """Scheduled instant to last token; None unless the answer is whole."""
        whole = self.token_ns and self.status is Status.OK
        return self.token_ns[-1] - self.scheduled_ns if whole else None

    @property
    def lateness_ns(self) -> int | None:
        """How long after its instant it was sent: the client's own fault."""
        return None if self.sent_ns is None else self.sent_ns - self.scheduled_ns

    @property
    def gaps_ns(self) -> list[int]:
        """Times between tokens, 0 within a piece of several."""
        return [b - a for a, b in zip(self.token_ns, self.token_ns[1:], strict=False)]

    @property
    def counted_tokens(self) -> int:
        """Output tokens by usage, else as many as were seen."""
        return len(self.token_ns) if self.output_tokens is None else self.output_tokens

    @property
    def tpot_ns(self) -> int | None:
        """(last - first token) / (output tokens - 1), in whole ns; None below 2 tokens."""
        if self.e2e_ns is None or self.counted_tokens < 2:
            return None
        return (self.token_ns[-1] - self.token_ns[0]) // (self.counted_tokens - 1)
