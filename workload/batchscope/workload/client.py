"""One request from its sending to its end: whatever happens becomes a status, never an exception.

Called by `replay`, one task a request.
"""

from __future__ import annotations

import asyncio
import json

from batchscope.workload.orders import Order
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.streamed import Stream, StreamError, written
from batchscope.workload.wire import Reply, Wire, WireError

_OVERLOAD = (429, 503)


async def ask(wire: Wire, order: Order, outcome: Outcome, *, timeout_s: float) -> None:
    """Send an order and follow its answer; `outcome` says how it went. A task that is cancelled
    before the answer ends was left by its client.
    """
    outcome.sent_ns, outcome.status = wire.clock(), Status.BROKEN
    try:
        await asyncio.wait_for(_converse(wire, order, outcome), timeout_s)
    except asyncio.CancelledError:
        outcome.status = Status.CUT if outcome.cut else Status.LEFT
    except asyncio.TimeoutError:
        outcome.status, outcome.why = Status.TIMEOUT, f"no end within {timeout_s:g} s"
    except StreamError as why:
        outcome.status, outcome.why = Status.FAILED, str(why)
    except WireError as why:
        outcome.status, outcome.why = Status.BROKEN, str(why)
    except OSError as why:
        reached = outcome.http_status is not None
        outcome.status = Status.BROKEN if reached else Status.UNREACHABLE
        outcome.why = why.strerror or str(why) or type(why).__name__
    outcome.ended_ns = wire.clock()


async def _converse(wire: Wire, order: Order, outcome: Outcome) -> None:
    post = wire.exchange("POST", order.path, body=order.body, headers=order.headers)
    async with post as reply:
        outcome.http_status = reply.status
        outcome.echoed_id = reply.headers.get("x-request-id")
        if reply.status == 200:
            await _follow(reply, outcome)
        else:
            outcome.status = _refusal(reply.status)
            outcome.why = _detail(await reply.body()) or f"HTTP {reply.status}"


async def _follow(reply: Reply, outcome: Outcome) -> None:
    """Read a stream to its end."""
    stream = Stream(outcome)
    try:
        async for at_ns, data in reply.pieces():
            stream.take(at_ns, data)
    except WireError:
        if not stream.done:  # some hang up behind the last word
            raise
    if stream.done or outcome.finish_reason:
        outcome.status = Status.OK
    else:
        outcome.why = "the stream ended before the answer did"


def _refusal(status: int) -> Status:
    if status in _OVERLOAD:
        return Status.SHED
    return Status.REFUSED if 400 <= status < 500 else Status.FAILED


def _detail(body: bytes) -> str:
    """The server's own sentence, in OpenAI's shape or as a problem."""
    try:
        said = json.loads(body)
        error = said.get("error", said)
        return written(error if isinstance(error, str) else error.get("message", ""))[:200]
    except (ValueError, AttributeError):
        return body[:200].decode("utf-8", "replace").strip()
