"""An arrival as a request of the OpenAI API: path, headers, body. Called by `replay`.

Identity by token ids is exact. As text, one word stands for one token: common English words, which
usual vocabularies know as one token each; the server's own count is reported beside what was asked.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchscope.workload.prompts import prompt_ids
from batchscope.workload.trace import Arrival

#: How a prompt is sent, and where.
PATHS = {"ids": "/v1/completions", "text": "/v1/completions", "chat": "/v1/chat/completions"}

_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name"
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class Order:
    """What is sent for one arrival."""

    request_id: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Dialect:
    """How requests are spelled.

    `prompt` is a key of PATHS; ids are drawn from 0..vocab-1. `extensions` asks for what vLLM and
    SGLang know beside OpenAI's own fields: to generate as many tokens as the trace says, whatever
    they are, and to tell their ids. `run` begins every request id.
    """

    model: str | None
    run: str
    prompt: str = "ids"
    vocab: int = 512
    seed: int = 0
    extensions: bool = True

    def order(self, arrival: Arrival) -> Order:
        """The request of an arrival; the same for the same arrival, dialect and run."""
        body = self._asked(arrival) | self._options(arrival)
        name = f"{self.run}-{arrival.ordinal}"
        headers = {"Content-Type": "application/json", "X-Request-Id": name}
        return Order(name, PATHS[self.prompt], headers, json.dumps(body).encode())

    def _asked(self, arrival: Arrival) -> dict[str, Any]:
        if self.prompt == "ids":
            return {"prompt": prompt_ids(arrival, vocab=self.vocab, seed=self.seed)}
        ids = prompt_ids(arrival, vocab=len(_WORDS), seed=self.seed)
        text = " ".join(_WORDS[id_] for id_ in ids)
        if self.prompt == "text":
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text}]}

    def _options(self, arrival: Arrival) -> dict[str, Any]:
        model = arrival.model if self.model is None else self.model
        options: dict[str, Any] = {"max_tokens": arrival.output_tokens, "stream": True}
        options["stream_options"] = {"include_usage": True}
        more = {"ignore_eos": True, "return_token_ids": True} if self.extensions else {}
        return options | more | {"temperature": 0} | ({"model": model} if model else {})


class Ahead:
    """Orders made before their instant, in the order of arrival, up to a bound of bytes: a prompt
    of 100,000 ids takes 20 ms to spell, which would delay every stamp meanwhile.
    """

    def __init__(
        self,
        arrivals: Iterable[Arrival],
        order: Callable[[Arrival], Order],
        *,
        most_bytes: int = 8 << 20,
    ) -> None:
        self._orders: Iterator[Order] = map(order, arrivals)
        self._ready: deque[Order] = deque()
        self._room = most_bytes

    def fill(self) -> None:
        """Make as many as there is room for."""
        while self.make_one():
            pass

    def make_one(self) -> bool:
        """Make the next, unless there is no room or no more to make."""
        made = next(self._orders, None) if self._room > 0 else None
        if made is None:
            return False
        self._ready.append(made)
        self._room -= len(made.body)
        return True

    def take(self) -> Order:
        """The next one."""
        if not self._ready:
            return next(self._orders)
        self._room += len(self._ready[0].body)
        return self._ready.popleft()
