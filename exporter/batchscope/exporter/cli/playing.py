"""Playing a trace to a server over HTTP, or to the cost model in virtual time. Used by replay."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from batchscope.exporter.cli import drawn
from batchscope.exporter.errors import BatchscopeError, ConfigError
from batchscope.workload.orders import Dialect
from batchscope.workload.outcome import Outcome
from batchscope.workload.replay import Played, Replay
from batchscope.workload.trace import Trace
from batchscope.workload.wire import Wire, WireError

DRAW_S = 0.5
ASK_S = 15.0

Heard = Callable[[Outcome], bool]
"""Told of each end; True: what this replay was for is known, send no more."""


class Player(Protocol):
    """Whom a trace can be played to."""

    @property
    def target(self) -> str:
        """Its name, without credentials."""

    def play(self, trace: Trace, *, word: str, heard: Heard | None = None) -> Played:
        """Offer a whole trace. word: what the bar says meanwhile."""


@dataclass(frozen=True)
class Server:
    """A server that speaks the OpenAI API. quiet: draw nothing."""

    url: str
    dialect: Dialect
    most: int
    timeout_s: float
    headers: Mapping[str, str]
    quiet: bool

    @property
    def target(self) -> str:
        """Its address, without credentials."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def play(self, trace: Trace, *, word: str, heard: Heard | None = None) -> Played:
        """In real time; Ctrl-C ends it early, what was seen so far is kept."""
        return asyncio.run(self._play(trace, word, heard))

    async def _play(self, trace: Trace, word: str, heard: Heard | None) -> Played:
        dialect = replace(self.dialect, run=uuid4().hex[:12])
        wire = Wire(self.url, self.headers)

        def told(outcome: Outcome) -> None:
            if heard is not None and heard(outcome):
                replay.stop()

        replay = Replay(
            trace, wire, dialect.order, most=self.most, timeout_s=self.timeout_s, heard=told
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, replay.stop)
        drawing = asyncio.create_task(_draw(replay.played, trace, word, quiet=self.quiet))
        try:
            return await replay.run()
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)


async def _draw(played: Played, trace: Trace, word: str, *, quiet: bool) -> None:
    """Until it is cancelled; the last time then."""
    shown, began = 0, time.monotonic()
    with suppress(asyncio.CancelledError):
        while not quiet:
            shown = _drawn(played, trace, word, began_s=began, shown=shown)
            await asyncio.sleep(DRAW_S)
    if not quiet:
        _drawn(played, trace, word, began_s=began, shown=shown)


def _drawn(played: Played, trace: Trace, word: str, *, began_s: float, shown: int) -> int:
    elapsed_s = min(time.monotonic() - began_s, _s(trace))
    bar = drawn.progress(word, elapsed_s, _s(trace))
    return drawn.draw([bar, said(played)], sys.stderr, shown)


def _s(trace: Trace) -> float:
    return trace.duration_ns / 1e9


def said(played: Played) -> str:
    """Where it stands: how many under way, how the others ended."""
    ends = [f"{number:,} {status}" for status, number in sorted(played.ended.items())]
    return ", ".join([f"{played.under_way:,} under way", *ends])


def model_of(url: str, headers: Mapping[str, str]) -> str | None:
    """The first model that a server lists, None when it lists none. Raises BatchscopeError when
    nobody answers, ConfigError for what is no address.
    """
    try:
        wire = Wire(url, headers)
    except ValueError as error:
        raise ConfigError(f"{error}: write it as {_respelled(url)}") from None
    try:
        return asyncio.run(asyncio.wait_for(_first_model(wire), ASK_S))
    except (OSError, WireError, asyncio.TimeoutError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer in time"
        raise BatchscopeError(f"no server answers at {url} ({why})") from None


def _respelled(url: str) -> str:
    """A URL of the host and port that seem to be meant; ours where none do."""
    meant = re.search(r"([\w.-]+|\[[\da-fA-F:]+\])?:(\d{1,5})(?!\d)", url.rpartition("@")[2])
    host, port = meant.groups() if meant else (None, None)
    return f"http://{host or '127.0.0.1'}:{port or 8000}"


async def _first_model(wire: Wire) -> str | None:
    async with wire.exchange("GET", "/v1/models") as reply:
        body = await reply.body()
    await wire.close()
    try:
        return str(json.loads(body)["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return None


def authorization(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The header for servers that want a key: BATCHSCOPE_API_KEY."""
    key = env.get("BATCHSCOPE_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
