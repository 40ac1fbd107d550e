"""HTTP as the load generator speaks it: bodies of every kind, kept connections, bad servers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workload.scripted_server import Asked, Fate, scripted

from batchscope.workload.wire import Wire, WireError, unchunked


def against(fate: Fate, work: Callable[[Wire], Awaitable[object]]) -> object:
    async def run() -> object:
        async with scripted(fate) as url:
            wire = Wire(url + "/base/", {"Authorization": "Bearer k"})
            try:
                return await asyncio.wait_for(work(wire), 10)
            finally:
                await wire.close()

    return asyncio.run(run())


async def get(wire: Wire) -> tuple[int, bytes]:
    async with wire.exchange("GET", "/x") as reply:
        return reply.status, await reply.body()


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_chunks_are_whole_however_they_are_cut_on_the_way(
    parts: list[bytes], data: st.DataObject
) -> None:
    wire = (
        b"".join(b"%x;n=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nT: 1\r\n\r\n"
    )
    held, out, ends = bytearray(), b"", []
    at = 0
    while at < len(wire):
        size = data.draw(st.integers(1, 30))
        held += wire[at : at + size]
        at += size
        content, ended = unchunked(held)
        out += content
        ends.append(ended)
    assert out == b"".join(parts)
    assert ends == [False] * (len(ends) - 1) + [True]


def test_a_body_of_known_length_is_read_and_the_connection_kept() -> None:
    connections = []

    async def fate(asked: Asked) -> bool:
        connections.append(asked.writer)
        assert asked.head == "GET /base/x HTTP/1.1"
        assert asked.headers["authorization"] == "Bearer k"
        await asked.answer(200, b"hello")
        return True

    async def twice(wire: Wire) -> list[tuple[int, bytes]]:
        return [await get(wire), await get(wire)]

    assert against(fate, twice) == [(200, b"hello")] * 2
    assert connections[0] is connections[1]


def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    served = []

    async def fate(asked: Asked) -> bool:
        served.append(asked)
        await asked.answer(200, b"ok")
        return False  # closes without having said so

    async def thrice(wire: Wire) -> list[tuple[int, bytes]]:
        return [await get(wire) for _ in range(3)]

    assert against(fate, thrice) == [(200, b"ok")] * 3
    assert len({asked.writer for asked in served}) == 3


def test_a_body_without_a_length_goes_to_the_end_of_the_connection() -> None:
    async def fate(asked: Asked) -> None:
        await asked.say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end")

    assert against(fate, get) == (200, b"to the end")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "hung up without an answer"),
        ("SSH-2.0 hello\r\n\r\n", "is not HTTP/1.1"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "the body was cut off"),
        ("HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "'many' is not a size"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "'zz' is not a size"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "stream was cut off"),
        ("HTTP/1.1 200 OK\r\nX: " + "y" * 70_000 + "\r\n\r\n", "head of the answer is too long"),
    ],
)
def test_what_is_no_answer_is_said_in_a_sentence(said: str, why: str) -> None:
    async def fate(asked: Asked) -> None:
        await asked.say(said)

    with pytest.raises(WireError, match=why):
        against(fate, get)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "chat"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="no http"):
        Wire(url)
