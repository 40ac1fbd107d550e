"""The decode half of a split: takes over requests whose prompts another engine has computed, first
come, first served, as soon as it has room for their KV, and tells their tokens to that engine.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from batchscope.engine.engine import Engine
from batchscope.engine.hop import Hop
from batchscope.engine.link import Link
from batchscope.engine.linked import LinkedLoop, Reach, identity
from batchscope.engine.sequence import Sequence

PEER = "prefill"


class Offer(NamedTuple):
    """A request whose KV is in the other half's `blocks`, heard of at `heard_ns`."""

    seq: Sequence
    blocks: list[int]
    heard_ns: int


class DecodeLoop(LinkedLoop):
    """Steps the decode engine. Offers wait in order of arrival, at the other half's expense: the
    pages stay there until they are taken.
    """

    def __init__(self, engine: Engine, reach: Reach, *, once: bool = False) -> None:
        super().__init__(engine, reach, once=once)
        self._offers: deque[Offer] = deque()
        self._output: list[tuple[str, int | str]] = []

    def _greet(self, link: Link) -> None:
        theirs, pages = link.expect("hello")
        ours = identity(self.engine)
        memory = None
        if theirs["page_bytes"] is not None:
            memory = link.receive_memory(pages=pages, page_bytes=theirs["page_bytes"])
        if self._arena is not None:
            self._arena.close()
        self._arena = memory
        odd = [name for name, value in ours.items() if theirs.get(name) != value]
        if odd:
            why = f"the two engines differ in {', '.join(odd)}"
            link.send("refused", why)
            raise ConnectionError(why)
        link.send("hello", self._room_tokens())

    def _room_tokens(self) -> int:
        config = self.engine.config
        pool = (config.num_blocks - config.watermark_blocks) * config.block_size
        return min(pool, config.max_model_len)

    def _on_offer(self, request_id: str, told: dict[str, Any]) -> None:
        heard_ns = self.engine.clock()
        seq = self._sequence(request_id, told, heard_ns)
        self.engine.post(partial(self._consider, Offer(seq, told["blocks"], heard_ns)))

    def _sequence(self, request_id: str, told: dict[str, Any], heard_ns: int) -> Sequence:
        trace = told.get("trace_context")
        seq = Sequence(
            request_id,
            told["prompt"],
            told["max_tokens"],
            arrival_ns=heard_ns,
            priority=told.get("priority", 0),
            ignore_eos=told.get("ignore_eos", True),
            tenant=told.get("tenant"),
            trace_context=trace and (bytes.fromhex(trace[0]), bytes.fromhex(trace[1])),
            on_token=lambda token: self._output.append((request_id, token)),
            on_end=lambda reason: self._output.append((request_id, reason.value)),
            given=len(told["generated"]),
        )
        seq.output.extend(told["generated"])
        return seq

    def _on_abort(self, request_id: str) -> None:
        self.engine.post(partial(self._withdraw, request_id))

    def _withdraw(self, request_id: str) -> None:
        for offer in self._offers:
            if offer.seq.request_id == request_id:
                self._offers.remove(offer)
                self._tell("declined", request_id)
                return
        self.engine.scheduler.abort(request_id)

    def _consider(self, offer: Offer) -> None:
        self._offers.append(offer)
        self.engine.post(self._take_offers)  # it may be withdrawn by what has come since

    def _take_offers(self) -> None:
        """Take from the head as many as there is room for."""
        while self._offers and self._answered(self._offers[0]):
            self._offers.popleft()

    def _answered(self, offer: Offer) -> bool:
        """Take this one; False while there is no room for it."""
        seq, scheduler = offer.seq, self.engine.scheduler
        try:
            if not scheduler.reserve(seq):
                return False
            self._take(offer)
        except Exception as why:  # noqa: BLE001  (whatever the device raised, or a refusal)
            scheduler.unreserve(seq)
            print(f"engine: {seq.request_id} was not taken: {why!r}", file=sys.stderr)
            self._tell("declined", seq.request_id)
        return True

    def _take(self, offer: Offer) -> None:
        seq, heard_ns = offer.seq, offer.heard_ns
        began_ns = self.engine.clock()
        blocks, nbytes = self._copy(offer)
        seq.arrival_ns = self.engine.clock()
        self.engine.scheduler.receive(seq)
        hop = Hop(
            PEER,
            incoming=True,
            start_ns=heard_ns,
            end_ns=seq.arrival_ns,
            blocks=blocks,
            nbytes=nbytes,
            wait_ns=began_ns - heard_ns,
        )
        self.engine.scheduler.transferred(seq, hop)
        took = {"wait_ns": began_ns - heard_ns, "copy_ns": seq.arrival_ns - began_ns}
        self._tell("taken", seq.request_id, took | {"blocks": blocks, "bytes": nbytes})

    def _copy(self, offer: Offer) -> tuple[int, int | None]:
        """(blocks, bytes) that came: all but those that the prefix cache had."""
        seq = offer.seq
        cached = seq.num_cached // self.engine.config.block_size
        theirs, ours = offer.blocks[cached:], seq.block_table[cached : len(offer.blocks)]
        if self._arena is None or self._pages is None:
            return len(theirs), None
        if not theirs:
            return 0, 0
        content = self._arena.get(theirs)
        self._pages.write_pages(ours, content)
        return len(theirs), len(content)

    def _step(self) -> None:
        super()._step()
        if self._output:
            said, self._output = self._output, []
            self._tell("output", said)
        if self._offers:  # whoever ended by this step has made room
            self.engine.post(self._take_offers)

    def _forget(self) -> None:
        self._offers.clear()
        for request_id in list(self.engine.scheduler.live):
            self.engine.scheduler.abort(request_id)
        self._output.clear()

    HEARD: ClassVar[dict[str, Callable[..., None]]] = {"offer": _on_offer, "abort": _on_abort}
