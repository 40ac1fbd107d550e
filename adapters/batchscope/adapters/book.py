"""The book of requests: engine id -> serial, and what this segment has been told about each.

Every segment of the ring stands alone, so a serial is introduced (ARRIVED or LIVE) before its
first use in each. Used by the recorder alone, on the stepping thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from batchscope.adapters.facts import Progress, Request, Traits
from batchscope.adapters.labels import Labels
from batchscope.adapters.naming import Name, Naming
from batchscope.schemas.records import ARRIVED, LIVE, NULL, NULL32, NULL64

REMEMBERED = 4096
"""Requests that have left and that a batch still in flight may name."""


class Identity(NamedTuple):
    """What ARRIVED and LIVE share in the order of their fields, but for instant and labels."""

    who: tuple[int, ...]
    labels: tuple[str | None, ...]
    sizes: tuple[int, int, int]
    tail: bytes


class Book:
    """Serials are numbered from 1 and never reused; an entry goes when its request has left."""

    def __init__(
        self, append: Callable[[bytes], None], *, traits: Traits, naming: Naming, labels: Labels
    ) -> None:
        self._append = append
        self._traits, self._id = traits, traits.id
        self._naming = naming
        self._labels = labels
        self._last = 0
        self.serials: dict[str, int] = {}
        self._introduced: set[int] = set()
        self._left: dict[str, int] = {}
        self._identities: dict[int, Identity] = {}

    def forget(self) -> None:
        """A new segment begins: it knows nobody."""
        self._introduced.clear()
        self._labels.forget()

    def clear(self) -> None:
        """Nothing is known about anyone any more: we have not been looking."""
        self.forget()
        self.serials.clear()
        self._left.clear()
        self._identities.clear()

    def arrive(self, request: Any, *, at_ns: int) -> None:
        """Number a new request and write ARRIVED."""
        serial = self._number(self._id(request))
        identity = self._identity(request, serial)
        fields = (at_ns, *identity.who, *self._numbers(identity), *identity.sizes)
        self._append(ARRIVED.struct.pack(ARRIVED.kind, 0, *fields) + identity.tail)
        self._introduced.add(serial)

    def known(self, request: Any, *, at_ns: int, progress: Progress | None = None) -> int:
        """The request's serial, introduced in this segment by LIVE where that is still due."""
        request_id = self._id(request)
        serial = self.serials.get(request_id) or self._number(request_id)
        if serial not in self._introduced:
            self._live(request, serial, at_ns, progress)
        return serial

    def serial_of(self, request: Any) -> int:
        """The serial of a member of a batch in flight, also when it has left; 0 if never seen."""
        request_id = self._id(request)
        return self.serials.get(request_id) or self._left.get(request_id, 0)

    def rename(self, request: Any, other: Any) -> None:
        """What the request was so far is known by the other's id; its own is free for the next."""
        serial = self.serials.pop(self._id(request), None)
        if serial is not None:
            self.serials[self._id(other)] = serial

    def all_serials(self, requests: Iterable[Any]) -> array[int]:
        """Serials in the order of `requests`; who was never seen gets one."""
        ids = list(map(self._id, requests))
        serials = self.serials
        try:
            return array("I", list(map(serials.__getitem__, ids)))
        except KeyError:
            return array("I", [serials.get(i) or self._number(i) for i in ids])

    def introduced(self, requests: Sequence[Any], *, at_ns: int, most: int) -> array[int]:
        """The same, after LIVE for the first `most` of those that this segment doesn't know."""
        serials = self.all_serials(requests)
        if not self.knows_all(serials):
            told = (r for r, s in zip(requests, serials, strict=True) if not self.knows(s))
            for request in islice(told, most):
                self.known(request, at_ns=at_ns)
        return serials

    def knows(self, serial: int) -> bool:
        """Whether this segment has been told who that is."""
        return serial in self._introduced

    def knows_all(self, serials: Iterable[int]) -> bool:
        """The same of many; without a look at them in the usual case, when all alive are known."""
        known = self._introduced
        return len(known) == len(self.serials) or known.issuperset(serials)

    def leave(self, request: Any) -> None:
        """Drop a known request's entry; the last few are remembered for batches in flight."""
        request_id = self._id(request)
        serial = self.serials.pop(request_id)
        self._introduced.discard(serial)
        self._identities.pop(serial, None)
        self._left[request_id] = serial
        if len(self._left) > REMEMBERED:
            del self._left[next(iter(self._left))]

    def _number(self, request_id: str) -> int:
        self._last += 1
        self.serials[request_id] = self._last
        self._left.pop(request_id, None)
        return self._last

    def _live(self, request: Any, serial: int, at_ns: int, progress: Progress | None) -> None:
        done = progress or self._traits.progress(request)
        identity = self._identity(request, serial)
        cached = NULL32 if done.cached_tokens is None else done.cached_tokens
        state = (done.computed_tokens, done.output_tokens, cached, done.preemptions, done.phase)
        fields = (at_ns, *identity.who, *self._numbers(identity), *identity.sizes)
        self._append(LIVE.struct.pack(LIVE.kind, 0, *fields, *state) + identity.tail)
        self._introduced.add(serial)

    def _numbers(self, identity: Identity) -> list[int]:
        number = self._labels.number
        return [number(text) if text else 0 for text in identity.labels]

    def _identity(self, request: Any, serial: int) -> Identity:
        """Made once in a request's life: the salted hash alone takes 1.6 us."""
        identity = self._identities.get(serial)
        if identity is None:
            request_id, facts = self._id(request), self._traits.request(request)
            name = self._naming.name(request_id, facts.external_id)
            identity = self._identities[serial] = _identity(serial, facts, name)
        return identity


def _identity(serial: int, facts: Request, name: Name) -> Identity:
    who = (
        NULL64 if facts.engine_arrival_ns is None else facts.engine_arrival_ns,
        name.key,
        name.external_key,
        *_trace(facts.trace),
        serial,
        facts.prompt_tokens,
        NULL32 if facts.max_tokens is None else facts.max_tokens,
        _priority(facts.priority),
    )
    sizes = (len(name.key_text), len(name.external_text), 0)
    labels = (facts.model, facts.lora, facts.tenant)
    return Identity(who, labels, sizes, name.key_text + name.external_text)


def _trace(trace: tuple[bytes, bytes] | None) -> tuple[int, int, int]:
    if trace is None:
        return 0, 0, 0
    trace_id, span_id = trace
    return (
        int.from_bytes(trace_id[:8], "big"),
        int.from_bytes(trace_id[8:16], "big"),
        int.from_bytes(span_id[:8], "big"),
    )


def _priority(priority: int | None) -> int:
    if priority is None:
        return NULL["i"]
    return max(-(2**31) + 1, min(2**31 - 1, priority))
