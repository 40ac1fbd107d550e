"""The requests of one front end in our own terms: who they are, what they were handed.

Pure but for what it is told; used by frontend.py, on the thread that feeds the outputs. vLLM's
objects aren't kept: an aborted request leaves its front end without a call that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchscope.adapters.facts import Progress, Request
from batchscope.adapters.vllm import requests
from batchscope.schemas.reasons import FinishReason, codes

_CODES = codes(FinishReason)
ABORTED = _CODES[FinishReason.ABORT]
ENDS: Mapping[str, int] = {
    "STOP": _CODES[FinishReason.STOP],
    "LENGTH": _CODES[FinishReason.LENGTH],
    "ABORT": ABORTED,
    "ERROR": _CODES[FinishReason.ERROR],
    "REPETITION": _CODES[FinishReason.STOP],
}
"""vLLM's reason in a last output -> ours."""
STOPPED = ENDS["STOP"]
"""A last output without a reason: the text met a stop string."""
Given = tuple["Guest", int]
"""A request and tokens that it was handed."""
Left = tuple["Guest", int]
"""A request that left and the code of its reason."""


@dataclass(slots=True)
class Guest:
    """A request of this front end.

    tokens: handed over so far. kept: came from the core and not handed over yet. plain: each output
    goes on at once. batched: several tokens go together (`stream_interval`). parent: of one of n
    answers that are only handed over together. came_ns: from its arrival to now, when it is made.
    """

    request_id: str
    facts: Request
    came_ns: int = 0
    tokens: int = 0
    kept: int = 0
    plain: bool = True
    batched: bool = False
    parent: str | None = None

    def progress(self) -> Progress:
        """What a front end knows of it: the tokens handed over."""
        return Progress(0, self.tokens, None, 0, 0)


@dataclass(slots=True)
class Guests:
    """Everyone that a front end has. `states` is vLLM's own roll, by internal id."""

    states: Mapping[str, Any]
    facts: Callable[[Any, Any], Request]
    wall: Callable[[], float]
    known: dict[str, Guest] = field(default_factory=dict)
    keepers: int = 0
    """How many are not plain."""
    siblings: dict[str, int] = field(default_factory=dict)
    """Parent -> answers that are still being made."""
    waiting: dict[str, list[Left]] = field(default_factory=dict)
    """Parent -> answers that are ready before the others."""

    def welcome(self, request: Any) -> Guest | None:
        """Who arrives; None for further input of someone who is here."""
        state = self.states.get(request.request_id)
        if state is None or request.request_id in self.known:
            return None
        guest = self._enter(request.request_id, state, request)
        if request.arrival_time:
            guest.came_ns = max(0, round((self.wall() - request.arrival_time) * 1e9))
        return guest

    def look(self) -> None:
        """Begin with the requests that were here before us."""
        for request_id, state in self.states.items():
            guest = self._enter(request_id, state, None)
            done = len(getattr(state.detokenizer, "output_token_ids", ()))
            sent = state.sent_tokens_offset if guest.batched else done * guest.plain
            guest.tokens, guest.kept = sent, done - sent

    def missed(self) -> list[Left]:
        """Who left without an output."""
        if len(self.known) == len(self.states):
            return []
        gone = [guest for request_id, guest in self.known.items() if request_id not in self.states]
        return self._parted([(guest, ABORTED) for guest in gone])

    def settled(
        self, came: Sequence[Given], outputs: Iterable[Any]
    ) -> tuple[list[Given], list[Left]]:
        """(what of these outputs was handed over, who left by them)."""
        left = self._ended(outputs)
        if not self.keepers:
            return [row for row in came if row[1]], self._parted(left)
        gone = {guest.request_id for guest, _ in left}
        given = [row for guest, n in came if (row := self._taken(guest, n, gone=gone))[1]]
        told = self._parted(left)
        return given + [_released(guest) for guest, _ in told if guest.kept], told

    def _enter(self, request_id: str, state: Any, request: Any) -> Guest:
        kind = _name(state.output_kind)
        batched = kind == "DELTA" and getattr(state, "stream_interval", 1) > 1
        plain = kind != "FINAL_ONLY" and not batched
        parent = state.parent_req.request_id if kind == "FINAL_ONLY" and state.parent_req else None
        facts = self.facts(state, request)
        guest = Guest(request_id, facts, plain=plain, batched=batched, parent=parent)
        self.known[request_id] = guest
        self.keepers += not plain
        if parent is not None:
            self.siblings[parent] = self.siblings.get(parent, 0) + 1
        return guest

    def _ended(self, outputs: Iterable[Any]) -> list[Left]:
        """Whose last output is among these: vLLM has struck them by now."""
        known, states = self.known, self.states
        if len(known) == len(states):
            return []
        return [
            (guest, ENDS.get(_name(output.finish_reason), STOPPED))
            for output in outputs
            if output.request_id not in states and (guest := known.get(output.request_id))
        ]

    def _taken(self, guest: Guest, n: int, *, gone: Collection[str]) -> Given:
        """What vLLM has just put into the stream of a request for which n tokens came."""
        if guest.plain:
            return guest, n
        guest.kept += n
        if guest.request_id in gone:
            return _released(guest) if guest.parent is None else (guest, 0)
        if not guest.batched:
            return guest, 0
        sent = self.states[guest.request_id].sent_tokens_offset - guest.tokens
        guest.kept -= sent
        return guest, sent

    def _parted(self, left: Iterable[Left]) -> list[Left]:
        """Strike who left; returns whose end can be told: one of n answers waits for the rest."""
        told: list[Left] = []
        for guest, reason in left:
            del self.known[guest.request_id]
            self.keepers -= not guest.plain
            told += [(guest, reason)] if guest.parent is None else self._family(guest, reason)
        return told

    def _family(self, guest: Guest, reason: int) -> list[Left]:
        parent = str(guest.parent)
        self.siblings[parent] -= 1
        self.waiting.setdefault(parent, []).append((guest, reason))
        if self.siblings[parent]:
            return []
        del self.siblings[parent]
        return self.waiting.pop(parent)


def guests_of(
    processor: Any, *, facts: Callable[[Any, Any], Request], wall: Callable[[], float]
) -> Guests:
    """Everyone of an OutputProcessor."""
    guests = Guests(processor.request_states, facts, wall)
    guests.look()
    return guests


def facts_of(state: Any, request: Any, *, model: str | None, random_ids: bool) -> Request:
    """Who it is, by vLLM's state of it and, at its arrival, by the request that goes to the core.

    All of n answers have the id that the client knows; the core knows each by an id of its own.
    """
    of = state.parent_req or state
    arrival = getattr(request or state.stats, "arrival_time", None)
    return Request(
        prompt_tokens=state.prompt_len,
        max_tokens=state.max_tokens_param,
        priority=getattr(request, "priority", None),
        external_id=requests.client_id(of.request_id) if random_ids else None,
        engine_arrival_ns=int(arrival * 1e9) if arrival else None,
        model=model,
        lora=state.lora_name,
        trace=requests.trace(getattr(request, "trace_headers", None)),
    )


def _released(guest: Guest) -> Given:
    n, guest.kept = guest.kept, 0
    return guest, n


def _name(value: Any) -> str:
    return str(getattr(value, "name", ""))
