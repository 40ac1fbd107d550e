"""The life of a followed ring: a goodbye ends it, records after a goodbye begin it again."""

from typing import Any

import pytest
from tests.support.records import body

from batchscope.exporter.discover import follow
from batchscope.schemas import records as r
from batchscope.schemas.ring import RingWriter

MS = 1_000_000
HELLO = {"engine": "one", "kind": "mini", "version": "1", "provides": {}}


@pytest.fixture
def ring(tmp_path: Any) -> Any:
    made = RingWriter(tmp_path, HELLO, mono=lambda: 0, wall=lambda: 10**18, size=1 << 20)
    while not made.grow():
        pass
    yield made
    made.close()


@pytest.fixture
def followed(ring: Any) -> Any:
    made = follow(ring.path, states={}, ends={}, slo=None)
    yield made
    made.reader.close()


def work(ring: Any, *, at: Any) -> None:
    ring.append(body(r.SCHEDULED, iteration_id=ring.iteration_id, at_ns=at * MS))
    ring.append(body(r.COMPLETED, iteration_id=ring.iteration_id, at_ns=(at + 1) * MS))
    ring.iteration_id += 1


def bye(ring: Any, *, at: Any) -> None:
    ring.append(body(r.BYE, at_ns=at * MS))


def marks(followed: Any) -> Any:
    return [(m["kind"], m["text"], (m["unix_ns"] - 10**18) // MS) for m in followed.marks]


def test_attached_again_after_a_goodbye_it_lives_again(ring: Any, followed: Any) -> None:
    work(ring, at=1)
    bye(ring, at=5)
    followed.read()
    assert (followed.state, followed.ended_unix_ns) == ("closed", 10**18 + 5 * MS)
    work(ring, at=9)
    followed.read()
    assert (followed.state, followed.ended_unix_ns) == ("live", None)
    assert followed.engine_row()["state"] == "live"
    assert marks(followed)[1:] == [("closed", "detached", 5), ("attach", "again", 9)]


def test_who_arrives_after_a_goodbye_is_ended_when_the_engine_dies(
    ring: Any, followed: Any
) -> None:
    bye(ring, at=5)
    followed.read()
    ring.append(body(r.ARRIVED, serial=1, prompt_tokens=3, at_ns=9 * MS))
    followed.read()
    assert followed.state == "live"
    assert marks(followed)[1:] == [("closed", "detached", 5), ("attach", "again", 9)]
    assert followed.die(10**18 + 11 * MS)["requests"]["serial"].tolist() == [1]


def test_a_pause_that_one_poll_sees_whole_is_none(ring: Any, followed: Any) -> None:
    work(ring, at=1)
    bye(ring, at=5)
    work(ring, at=9)
    followed.read()
    assert (followed.state, marks(followed)[1:]) == ("live", [])


def test_the_last_of_several_goodbyes_is_the_end(ring: Any, followed: Any) -> None:
    bye(ring, at=5)
    followed.read()
    work(ring, at=9)
    bye(ring, at=12)
    followed.read()
    assert (followed.state, followed.ended_unix_ns) == ("closed", 10**18 + 12 * MS)
