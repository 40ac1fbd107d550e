"""A server that answers as a test says: raw HTTP on loopback, beside the client in one event loop.

`fate(request)` is a coroutine function that writes what it likes; the connection is closed after it
unless it returns True.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Asked:
    """One request on its connection."""

    head: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter

    @property
    def ordinal(self) -> int:
        return int(self.headers["x-request-id"].rpartition("-")[2])

    async def say(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())
        await self.writer.drain()

    async def answer(self, status: int, body: bytes, *more: str) -> None:
        lines = (f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *more)
        await self.say("\r\n".join((*lines, "", "")).encode() + body)

    async def stream(self) -> None:
        kind = "Content-Type: text/event-stream"
        await self.say(f"HTTP/1.1 200 OK\r\n{kind}\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def event(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        data = f"data: {text}\n\n".encode()
        await self.say(b"%x\r\n%s\r\n" % (len(data), data))

    async def tokens(self, *ids: int) -> None:
        for id_ in ids:
            choice = {"index": 0, "text": "x", "token_ids": [id_], "finish_reason": None}
            await self.event({"id": "cmpl-1", "choices": [choice]})

    async def end(self, *, output: int) -> None:
        await self.event({"choices": [{"text": "", "finish_reason": "length"}]})
        usage = {"prompt_tokens": 3, "completion_tokens": output}
        await self.event({"choices": [], "usage": usage})
        await self.event("[DONE]")
        await self.say("0\r\n\r\n")


Fate = Callable[[Asked], Awaitable[bool | None]]


@asynccontextmanager
async def scripted(fate: Fate) -> AsyncIterator[str]:
    """Serve; the URL."""
    talks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = asyncio.current_task()
        assert mine is not None
        talks.add(mine)
        try:
            while await fate(await _asked(reader, writer)):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            talks.discard(mine)

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(talks):
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
    head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    split = [line.partition(": ") for line in lines if line]
    headers = {name.lower(): value for name, _, value in split}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(head, headers, body, writer)
