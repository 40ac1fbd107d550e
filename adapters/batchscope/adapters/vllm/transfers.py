"""KV on its way between engines, as far as vLLM's connector tells its scheduler.

A load begins when the connector is handed the blocks to fill and ends with the output that says
so. A send is the other side: blocks held from the end of their request until they are let go.
Loads within a forward pass are no hops: they take that batch's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.vllm.requests import Gone
from batchscope.adapters.vllm.shape import Shape
from batchscope.schemas import reasons
from batchscope.schemas.reasons import Direction

MOST_UNDER_WAY = 4096
"""Hops of each direction that are remembered; one whose end is never told is forgotten."""
LOADING = "WAITING_FOR_REMOTE_KVS"

_CODES = reasons.codes(Direction)
_IN, _OUT = _CODES[Direction.IN], _CODES[Direction.OUT]


@dataclass(slots=True)
class Hop:
    """One transfer under way; `nbytes` counts while it is the only load, else it is None."""

    start_ns: int
    direction: int
    peer: str | None
    blocks: int | None = None
    nbytes: int | None = None
    failed: bool = False


class Transfers:
    """The hops of one scheduler: `asked` is what the connector was handed since the last look."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._asked: list[tuple[int, Any, int]] = []
        self._loads: dict[str, Hop] = {}
        self._sends: dict[str, Hop] = {}

    def ask(self, request: Any, tokens: int, *, at_ns: int) -> None:
        """The connector was handed a request with so many tokens to load, from now on."""
        if tokens:
            self._asked.append((at_ns, request, tokens))

    def begin(self) -> None:
        """Of what was handed over, that is a hop whose request now waits for it."""
        asked, self._asked = self._asked, []
        for at_ns, request, tokens in asked:
            if request.status.name == LOADING:
                blocks = self._blocks(tokens)
                self._loads[request.request_id] = Hop(at_ns, _IN, peer(request), blocks, 0)
                _bound(self._loads)
        if asked and len(self._loads) > 1:
            for hop in self._loads.values():
                hop.nbytes = None

    def hold(self, request: Any, *, at_ns: int) -> None:
        """A request has ended, its blocks are kept for another engine."""
        if request.request_id not in self._loads:
            self._sends[request.request_id] = Hop(at_ns, _OUT, peer(request))
            _bound(self._sends)

    def spoil(self, request_id: str) -> None:
        """Its load has failed; the end of it is still to come."""
        if request_id in self._loads:
            self._loads[request_id].failed = True

    def ended(self, scheduler: Any, told: Any) -> Iterator[tuple[Any, Hop]]:
        """(request, hop) of those that a KVConnectorOutput ends."""
        stats = getattr(getattr(told, "kv_connector_stats", None), "data", None) or {}
        self._count(stats)
        for request_id in self._failed(scheduler, told):
            self.spoil(request_id)
        sent = told.finished_sending or ()
        lapsed = 0 < len(sent) <= len(stats.get("num_kv_expired_reqs") or ())
        for request_id in told.finished_recving or ():
            if hop := self._loads.pop(request_id, None):
                yield scheduler.requests.get(request_id) or Gone(request_id), hop
        for request_id in sent:
            if hop := self._sends.pop(request_id, None):
                hop.failed = lapsed
                yield Gone(request_id), hop

    def _count(self, stats: Mapping[str, Any]) -> None:
        """Bytes that the connector counted belong to the only load there is."""
        if len(self._loads) == 1 and self._shape.counts_bytes:
            (hop,) = self._loads.values()
            if hop.nbytes is not None:
                hop.nbytes += sum(stats.get("bytes_transferred") or ())

    def _failed(self, scheduler: Any, told: Any) -> set[str]:
        if not self._loads:
            return set()
        known = getattr(scheduler, "failed_recving_kv_req_ids", ())
        return {*known, *(getattr(told, "failed_recving", None) or ())}

    def _blocks(self, tokens: int) -> int | None:
        """Groups of layers keep blocks of their own: how many of each were meant isn't told."""
        return None if self._shape.groups > 1 else -(-tokens // self._shape.block_tokens)


def peer(request: Any) -> str | None:
    """The other engine, by the parameters that the request came with."""
    params = getattr(request, "kv_transfer_params", None) or {}
    engine = params.get("remote_engine_id") or params.get("remote_host")
    return None if engine is None else str(engine)


def _bound(hops: dict[str, Hop]) -> None:
    if len(hops) > MOST_UNDER_WAY:
        del hops[next(iter(hops))]


def on_load(
    watch: Any, times: Times, _result: None, request: Any, _blocks: Any, num_external_tokens: int
) -> None:
    """The connector's update_state_after_alloc(request, blocks, num_external_tokens)."""
    watch.subject.transfers.ask(request, num_external_tokens, at_ns=times[1])


def on_connector_finished(
    watch: Any, times: Times, result: Any, request: Any, *_: Any, **__: Any
) -> None:
    """_connector_finished(request) -> (whether its blocks are kept, parameters)."""
    if result[0]:
        watch.subject.transfers.hold(request, at_ns=times[1])


def tell(watch: Any, model_runner_output: Any, *, at_ns: int) -> None:
    """After update_from_output(): what its output ends, at its arrival."""
    view = watch.subject
    view.transfers.begin()  # a load may be handed over in an update, too
    told = getattr(model_runner_output, "kv_connector_output", None)
    for request, hop in view.transfers.ended(view.scheduler, told) if told else ():
        watch.recorder.transfer(
            request,
            start_ns=hop.start_ns,
            at_ns=at_ns,
            direction=hop.direction,
            blocks=hop.blocks,
            nbytes=hop.nbytes or None,
            peer=hop.peer,
            failed=hop.failed,
        )


SEAMS = (
    Seam(
        "connector.update_state_after_alloc",
        lambda scheduler: scheduler.connector,
        "update_state_after_alloc",
        after=on_load,
    ),
    Seam(
        "scheduler._connector_finished",
        lambda scheduler: scheduler,
        "_connector_finished",
        after=on_connector_finished,
    ),
)
"""Hooked where there is a KV connector."""
