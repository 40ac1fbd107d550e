"""The prefill half of a split: prompts run here, their first token comes from here, their KV waits
in this engine's pages until a decode engine has it (DistServe, OSDI 2024).

Used by a server in the place of an EngineLoop: its clients see one engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from batchscope.engine.engine import Engine
from batchscope.engine.hop import Hop
from batchscope.engine.limits import RequestRejected
from batchscope.engine.link import Arena, Link
from batchscope.engine.linked import LinkedLoop, Reach, identity
from batchscope.engine.sequence import FinishReason, Sequence

PEER = "decode"


class Wish(NamedTuple):
    """What the rest of a request is to be, and who hears its tokens."""

    max_tokens: int
    on_token: Callable[[int], None]
    options: dict[str, Any]


class Offer(NamedTuple):
    """A request whose KV waits to be taken, since `start_ns`; staging it took `copy_ns`."""

    seq: Sequence
    start_ns: int
    copy_ns: int


class PrefillLoop(LinkedLoop):
    """Serves whole requests with the help of a decode engine. Tokens and ends that come from there
    are heard on the line's thread, at once, whatever this engine computes at the moment.

    `_offers` belongs to the engine's thread; `_away` maps a request that the other half goes on
    with to who hears its tokens.
    """

    def __init__(self, engine: Engine, reach: Reach, *, max_waiting: int = 256) -> None:
        super().__init__(engine, reach, max_waiting=max_waiting)
        self._offers: dict[str, Offer] = {}
        self._away: dict[str, Callable[[int], None]] = {}
        self._room_tokens = 0

    @property
    def alive(self) -> bool:
        """Whether requests are taken: not without a decode engine."""
        return super().alive and self.linked

    @property
    def waiting(self) -> int:
        """Requests that neither run here nor were handed over."""
        return max(0, super().waiting - len(self._away))

    def _greet(self, link: Link) -> None:
        pages = self.engine.config.num_blocks
        if self._arena is None and self._pages is not None:
            self._arena = Arena.create(pages=pages, page_bytes=self._pages.page_bytes)
        link.send("hello", identity(self.engine), pages)
        if self._arena is not None:
            link.send_memory(self._arena)
        (self._room_tokens,) = link.expect("hello", seconds=None)

    def _hand_in(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        on_token: Callable[[int], None],
        **options: Any,
    ) -> None:
        """One token here, the others there."""
        if max_tokens <= 1:
            super()._hand_in(request_id, prompt, max_tokens, on_token, **options)
            return
        if request_id in self._away:
            raise RequestRejected(f"{request_id}: this id is in use")
        most = len(prompt) + max_tokens
        if most > self._room_tokens:
            why = f"prompt + max_tokens is {most}, the decode engine takes {self._room_tokens}"
            raise RequestRejected(f"{request_id}: {why}")
        wish = Wish(max_tokens, on_token, options)
        self.engine.submit(
            request_id,
            prompt,
            1,
            on_token=on_token,
            on_end=partial(self._prefilled, request_id, wish),
            keeps_kv=True,
            **options,
        )

    def _give_up(self, request_id: str) -> None:
        self.engine.post(partial(self._withdraw, request_id))

    def _withdraw(self, request_id: str) -> None:
        """What was offered stays as it is until the other half has answered: it may be reading."""
        if request_id in self._away:
            self._tell("abort", request_id)
        else:
            self.engine.scheduler.abort(request_id)

    def _prefilled(self, request_id: str, wish: Wish, reason: FinishReason) -> None:
        """Its part here has ended. Called within a step, which is not to be held up."""
        if reason is FinishReason.LENGTH:
            start_ns = self.engine.clock()
            self.engine.post(partial(self._offer, request_id, wish, start_ns))
        else:
            self._ended(request_id, reason)

    def _offer(self, request_id: str, wish: Wish, start_ns: int) -> None:
        """Stage the pages and tell the other half."""
        scheduler = self.engine.scheduler
        seq = scheduler.kept[request_id]
        if request_id not in self._live:  # its client went meanwhile
            scheduler.let_go(request_id)
            return
        began_ns = self.engine.clock()
        self._stage(seq.block_table)
        self._offers[request_id] = Offer(seq, start_ns, self.engine.clock() - began_ns)
        self._away[request_id] = wish.on_token
        told = {
            "prompt": seq.prompt,
            "generated": seq.output,
            "max_tokens": wish.max_tokens,
            "blocks": seq.block_table,
            **_plain(wish.options),
        }
        if not self._tell("offer", request_id, told):
            self._refused(request_id)

    def _stage(self, blocks: list[int]) -> None:
        if self._arena is not None and self._pages is not None:
            self._arena.put(blocks, self._pages.read_pages(blocks))

    def _on_taken(self, request_id: str, told: dict[str, Any]) -> None:
        self.engine.post(partial(self._taken, request_id, told, self.engine.clock()))

    def _taken(self, request_id: str, told: dict[str, Any], end_ns: int) -> None:
        """The other half has the KV: this one's pages are free again."""
        seq, start_ns, staged_ns = self._offers.pop(request_id)
        wait_ns, copy_ns = told["wait_ns"], told["copy_ns"] + staged_ns
        hop = Hop(
            PEER,
            incoming=False,
            start_ns=start_ns,
            end_ns=end_ns,
            blocks=told["blocks"],
            nbytes=told["bytes"],
            wait_ns=wait_ns,
            handshake_ns=end_ns - start_ns - wait_ns - copy_ns,
        )
        self.engine.scheduler.transferred(seq, hop)
        self.engine.scheduler.let_go(request_id)

    def _on_declined(self, request_id: str) -> None:
        self.engine.post(partial(self._refused, request_id))

    def _refused(self, request_id: str) -> None:
        """The other half has not got the KV and never will."""
        seq, start_ns, _ = self._offers.pop(request_id)
        hop = Hop(PEER, incoming=False, start_ns=start_ns, end_ns=self.engine.clock(), failed=True)
        self.engine.scheduler.transferred(seq, hop)
        self.engine.scheduler.let_go(request_id)
        self._over(request_id, FinishReason.ERROR)

    def _on_output(self, items: list[tuple[str, int | str]]) -> None:
        """Tokens and ends of a decode step: a number is a token, a word the reason of an end."""
        for request_id, item in items:
            if isinstance(item, str):
                self._over(request_id, FinishReason(item))
            elif (on_token := self._away.get(request_id)) is not None:
                on_token(item)

    def _over(self, request_id: str, reason: FinishReason) -> None:
        self._away.pop(request_id, None)
        self._ended(request_id, reason)

    def _forget(self) -> None:
        for request_id in list(self._offers):
            self._refused(request_id)
        for request_id in list(self._away):
            self._over(request_id, FinishReason.ERROR)

    HEARD: ClassVar[dict[str, Callable[..., None]]] = {
        "taken": _on_taken,
        "declined": _on_declined,
        "output": _on_output,
    }


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a request as a message can carry them."""
    trace = options.get("trace_context")
    return options | {"trace_context": None if trace is None else [part.hex() for part in trace]}
