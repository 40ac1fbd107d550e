"""Sessions whose input comes in pieces: every piece, with the answer to it, is a request of ours.

vLLM keeps one object for all of them. At the end of an answer it waits for the client, who is not
being kept waiting, or goes on with input that came meanwhile; what it kept counts as found in the
cache. So the client's pauses are in no latency, and every answer has an end of its own.
"""

from __future__ import annotations

from typing import Any

from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.vllm import requests

FED = "WAITING"


class Turn:
    """One piece of a session that has ended, under an id of its own."""

    def __init__(self, session: Any, number: int) -> None:
        self.request_id = f"{session.request_id}\0{number}"
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def on_stop_entry(watch: Any, request: Any) -> None:
    """_handle_stopped_request(request): what it is about to forget."""
    watch.subject.stopped = (request.status.name, request.num_output_tokens)


def on_stop(watch: Any, times: Times, finished: bool, request: Any) -> None:  # noqa: FBT001
    """-> whether it leaves for good. If not, this answer ends all the same; up to 0.30 an output
    that was in flight then ends it once more.
    """
    view, name = watch.subject, request.request_id
    if finished or name in view.resting:
        return
    status, tokens = view.stopped
    queued = view.queued_ns.get(name)
    view.forget(name)
    turn = view.turn(request)
    watch.recorder.renamed(request, turn)
    watch.recorder.finished(
        turn,
        at_ns=times[1],
        reason=requests.FINISH.get(status, requests.UNKNOWN_END),
        output_tokens=tokens,
        engine_ns=(queued, None, None),
    )
    if request.status.name == FED:
        view.fed.append(request)


def begin(watch: Any, request: Any, *, at_ns: int) -> None:
    """There is input for a session that had answered: its next turn arrives."""
    watch.subject.resting.discard(request.request_id)
    watch.recorder.arrived(request, at_ns=at_ns)


def begin_fed(watch: Any, *, at_ns: int) -> None:
    """After an update: the turns whose input had come before."""
    fed, watch.subject.fed = watch.subject.fed, []
    for request in fed:
        begin(watch, request, at_ns=at_ns)


SEAM = Seam(
    "scheduler._handle_stopped_request",
    lambda scheduler: scheduler,
    "_handle_stopped_request",
    after=on_stop,
    before=on_stop_entry,
)
"""Called once for each request that stops."""
