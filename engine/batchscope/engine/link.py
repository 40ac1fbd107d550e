"""A line between two engines of one host: messages over a local socket, pages in shared memory.

Used by prefill.py and decode.py. Whoever dies is noticed at once by the end of the stream, whoever
hangs by silence.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from struct import pack
from typing import Any

BEAT_S = 1.0
SILENCE_S = 10.0
"""Without a message or a beat for so long the other end counts as dead."""
SEND_S = 5
"""A message that the other end doesn't take for so long can't be sent."""


class Link:
    """JSON messages, each a list that begins with its kind. send() is safe from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("ll", SEND_S, 0))

    def send(self, kind: str, *rest: Any) -> bool:
        """False when the other end can't be reached: then the line is hung up."""
        message = json.dumps([kind, *rest], separators=(",", ":")).encode()
        try:
            with self._lock:
                self._connection.send_bytes(message)
        except OSError:
            self.hang_up()
            return False
        return True

    def messages(self) -> Iterator[list[Any]]:
        """What the other end says, until it has gone, was silent too long, or one hung up."""
        heard = beat = time.monotonic()
        try:
            while time.monotonic() - heard < SILENCE_S:
                if time.monotonic() - beat >= BEAT_S:
                    beat = time.monotonic()
                    self.send("beat")
                if self._connection.poll(BEAT_S):
                    message = json.loads(self._connection.recv_bytes())
                    heard = time.monotonic()
                    if message[0] != "beat":
                        yield message
        except (OSError, EOFError):
            return

    def expect(self, kind: str, *, seconds: float | None = SILENCE_S) -> list[Any]:
        """The rest of the next message; `seconds` None waits as long as the other end lives. Raises
        OSError when it is another kind, or none comes.
        """
        if not self._connection.poll(seconds):
            raise TimeoutError(f"no {kind} came in {seconds} s")
        try:
            said, *rest = json.loads(self._connection.recv_bytes())
        except EOFError:
            raise ConnectionError("the other end has gone") from None
        if said != kind:
            raise ConnectionError(str(rest[0]) if rest else f"{said} instead of {kind}")
        return list(rest)

    def send_memory(self, arena: Arena) -> None:
        """Let the other end map these pages. Raises OSError."""
        send_handle(self._connection, arena.descriptor, None)

    def receive_memory(self, *, pages: int, page_bytes: int) -> Arena:
        """Map what send_memory sent. Raises OSError, EOFError."""
        return Arena(recv_handle(self._connection), pages=pages, page_bytes=page_bytes)

    def hang_up(self) -> None:
        """End the talk on both sides; messages() returns. Safe to repeat, from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give back the descriptors, once nobody is in messages() any more."""
        self.hang_up()
        with self._lock:
            self._socket.close()
            self._connection.close()


class Arena:
    """Memory that two processes share, a page for each KV block of the engine that made it.

    It has no name in any folder: it is gone with the last process that holds it, however that ends.
    It takes memory for pages that were used, and `descriptor` belongs to it.
    """

    def __init__(self, descriptor: int, *, pages: int, page_bytes: int) -> None:
        self.descriptor, self.pages, self.page_bytes = descriptor, pages, page_bytes
        self._map = mmap.mmap(descriptor, pages * page_bytes)

    @classmethod
    def create(cls, *, pages: int, page_bytes: int) -> Arena:
        """New memory of zeros. Raises OSError."""
        descriptor = os.memfd_create("kv-pages")
        os.ftruncate(descriptor, pages * page_bytes)
        return cls(descriptor, pages=pages, page_bytes=page_bytes)

    def put(self, blocks: Sequence[int], data: bytes) -> None:
        """Write pages, `data` holding one after the other."""
        size = self.page_bytes
        for index, block in enumerate(blocks):
            page = data[index * size : (index + 1) * size]
            self._map[block * size : (block + 1) * size] = page

    def get(self, blocks: Sequence[int]) -> bytes:
        """The pages of these blocks, one after the other."""
        size = self.page_bytes
        return b"".join([self._map[block * size : (block + 1) * size] for block in blocks])

    def close(self) -> None:
        """Unmap it."""
        self._map.close()
        os.close(self.descriptor)
