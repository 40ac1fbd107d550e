"""HTTP/1.1 as far as a streaming load generator needs it, on asyncio alone.

A general client (httpx) takes 85-130 us of its core for a piece of a stream, this one 55-60 with
the piece understood: what is spent on one piece delays the stamp of the next. No proxies, no
redirects.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

READ_BYTES = 64 << 10
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WireError(Exception):
    """The connection ended early or what came is no HTTP/1.1."""


@dataclass
class Reply:
    """An answer whose head is read; its body comes by `pieces`, once."""

    status: int
    headers: Mapping[str, str]
    reader: asyncio.StreamReader
    clock: Callable[[], int]
    finished: bool = False

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        """(when it was read, bytes) as they come. Raises WireError when the body is cut off."""
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            source = self._chunked()
        else:
            length = self.headers.get("content-length")
            source = self._plain(-1 if length is None else _number(length))
        async for piece in source:
            yield piece
        self.finished = True

    async def body(self) -> bytes:
        """All of it."""
        return b"".join([piece async for _, piece in self.pieces()])

    async def _read(self, most: int = READ_BYTES) -> tuple[int, bytes]:
        data = await self.reader.read(most)
        return self.clock(), data

    async def _plain(self, length: int) -> AsyncIterator[tuple[int, bytes]]:
        """`length` bytes; below 0: to the end of the connection."""
        while length:
            at_ns, data = await self._read(min(READ_BYTES, length) if length > 0 else READ_BYTES)
            if not data:
                if length < 0:
                    return
                raise WireError("the body was cut off")
            length -= len(data) if length > 0 else 0
            yield at_ns, data

    async def _chunked(self) -> AsyncIterator[tuple[int, bytes]]:
        held = bytearray()
        while True:
            at_ns, data = await self._read()
            if not data:
                raise WireError("the stream was cut off")
            held += data
            out, ended = unchunked(held)
            if out:
                yield at_ns, out
            if ended:
                return


def unchunked(held: bytearray) -> tuple[bytes, bool]:
    """(content of the whole chunks in `held`, was the last one among them); takes them out."""
    out, at, size = [], 0, -1
    while (line := held.find(b"\r\n", at)) >= 0:
        size = _size(bytes(held[at:line]))
        ends = line + 2 + size
        if size == 0 or len(held) < ends + 2:
            break
        out.append(bytes(held[line + 2 : ends]))
        at = ends + 2
    ended = line >= 0 and size == 0 and held.find(b"\r\n\r\n", line) >= 0
    del held[:at]
    return b"".join(out), ended


def _size(line: bytes) -> int:
    return _number(line.partition(b";")[0].decode("latin-1"), base=16)


def _number(text: str, *, base: int = 10) -> int:
    try:
        size = int(text, base)
    except ValueError:
        size = -1
    if size < 0:  # int() takes a sign: a chunk that ends before it begins would be read for ever
        raise WireError(f"{text[:20]!r} is not a size")
    return size


@dataclass
class Wire:
    """Connections to one server, reused while it keeps them open. For one event loop.

    `url` is http(s)://host[:port][/base]; paths are appended to it.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], int] = time.monotonic_ns
    connect_s: float = 10.0
    _idle: list[Connection] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{self.url!r} is no http:// or https:// address")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._base = parts.hostname, parts.path.rstrip("/")
        self._port = parts.port or (443 if self._tls else 80)
        self._name = parts.netloc.rpartition("@")[2]

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Reply]:
        """Send and read the head of the answer. Raises OSError when nobody is there, WireError when
        the connection ends early. What isn't read to its end costs the connection.
        """
        connection, reply = await self._begin(self._request(method, path, body, headers or {}))
        try:
            yield reply
        finally:
            keeps = reply.headers.get("connection", "").lower() != "close"
            if reply.finished and keeps and not connection[0].at_eof():
                self._idle.append(connection)
            else:
                connection[1].close()

    async def close(self) -> None:
        """Let go of idle connections."""
        while self._idle:
            self._idle.pop()[1].close()
        await asyncio.sleep(0)  # transports close in the loop's next round

    def _request(self, method: str, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        named = {"Host": self._name, "Content-Length": str(len(body)), **self.headers, **more}
        lines = [f"{method} {self._base}{path} HTTP/1.1", *(f"{k}: {v}" for k, v in named.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    async def _begin(self, request: bytes) -> tuple[Connection, Reply]:
        """A kept connection may have been closed by the server just now: then another one."""
        while True:
            kept = bool(self._idle)
            connection = self._idle.pop() if kept else await self._connect()
            try:
                return connection, await self._send(connection, request)
            except BaseException as why:
                connection[1].close()
                if not (kept and isinstance(why, WireError | OSError)):
                    raise

    async def _connect(self) -> Connection:
        opening = asyncio.open_connection(self._host, self._port, ssl=self._tls)
        try:
            return await asyncio.wait_for(opening, self.connect_s)
        except asyncio.TimeoutError:
            raise ConnectionError(f"no connection within {self.connect_s:g} s") from None

    async def _send(self, connection: Connection, request: bytes) -> Reply:
        reader, writer = connection
        writer.write(request)
        await writer.drain()
        status, headers = await _head(reader)
        while 100 <= status < 200:
            status, headers = await _head(reader)
        return Reply(status, headers, reader, self.clock)


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        raise WireError("the server hung up without an answer") from None
    except asyncio.LimitOverrunError:
        raise WireError("the head of the answer is too long") from None
    first, *lines = text.split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise WireError(f"{first[:60]!r} is not HTTP/1.1")
    split = (line.partition(":") for line in lines if line)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in split}
