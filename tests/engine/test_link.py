"""The line between two engines: what comes through, and how its end is noticed."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.halves import until

from batchscope.engine import link as line
from batchscope.engine.link import Arena, Link

BIG = list(range(60_000))
"""More than a socket's buffer takes at once."""


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    near, far = (Link(end) for end in multiprocessing.Pipe())
    yield near, far
    near.close()
    far.close()


class Listener:
    """Hears a line on a thread of its own."""

    def __init__(self, link: Link) -> None:
        self.heard: list[list[Any]] = []
        self.thread = threading.Thread(target=self._listen, args=(link,))
        self.thread.start()

    def _listen(self, link: Link) -> None:
        for message in link.messages():
            self.heard.append(message)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats and silence in tenths of a second."""
    monkeypatch.setattr(line, "BEAT_S", 0.05)
    monkeypatch.setattr(line, "SILENCE_S", 0.4)


def test_messages_come_whole_and_in_order(ends: tuple[Link, Link]) -> None:
    near, far = ends
    listener = Listener(far)
    assert all(near.send("count", number, BIG) for number in range(5))
    until(lambda: len(listener.heard) == 5)
    near.hang_up()
    listener.thread.join(10)
    assert [message[1] for message in listener.heard] == list(range(5))
    assert listener.heard[0] == ["count", 0, BIG]


def test_the_end_of_the_other_side_is_noticed_at_once(ends: tuple[Link, Link]) -> None:
    near, far = ends
    listener = Listener(far)
    near.hang_up()
    listener.thread.join(10)
    assert not listener.thread.is_alive()
    assert not far.send("anybody")


@pytest.mark.usefixtures("quick")
def test_a_side_that_says_nothing_counts_as_dead() -> None:
    near, silent = multiprocessing.Pipe()
    link = Link(near)
    began = time.monotonic()
    assert list(link.messages()) == []
    assert 0.3 < time.monotonic() - began < 10
    link.close()
    silent.close()


@pytest.mark.usefixtures("quick")
def test_two_that_have_nothing_to_say_stay_connected(ends: tuple[Link, Link]) -> None:
    listeners = [Listener(end) for end in ends]
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 1.2)
    assert all(listener.thread.is_alive() for listener in listeners)
    ends[0].hang_up()
    for listener in listeners:
        listener.thread.join(10)
    assert [listener.heard for listener in listeners] == [[], []], "beats are no messages"


def test_an_unexpected_word_is_the_reason_that_is_told(ends: tuple[Link, Link]) -> None:
    near, far = ends
    near.send("refused", "the two differ")
    with pytest.raises(ConnectionError, match="the two differ"):
        far.expect("hello")
    with pytest.raises(TimeoutError):
        far.expect("hello", seconds=0)


def test_pages_that_one_side_writes_are_read_by_the_other(ends: tuple[Link, Link]) -> None:
    near, far = ends
    mine = Arena.create(pages=4, page_bytes=3)
    near.send_memory(mine)
    theirs = far.receive_memory(pages=4, page_bytes=3)
    mine.put([3, 1], b"abcdef")
    assert theirs.get([1, 3, 0]) == b"defabc\0\0\0"
    for arena in (mine, theirs):
        arena.close()
