"""Who waits while no decision comes is deferred all the same, and no counter falls for it."""

from tests.support.records import Script

from batchscope.exporter.fold import RingFold
from batchscope.exporter.standing import Key, Standing

KEY: Key = ("deferred_seconds", ("kv_blocks",))


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_seconds_run_on_while_the_engine_decides_nothing() -> None:
    clock = Clock()
    standing = Standing(clock)
    assert standing.shown({KEY: 7}, {"kv_blocks": 3}, decisions=1, live=True) == {KEY: 7}
    clock.now = 100
    assert standing.shown({KEY: 7}, {"kv_blocks": 3}, decisions=1, live=True) == {KEY: 307}


def test_what_was_shown_never_falls() -> None:
    clock = Clock()
    standing = Standing(clock)
    standing.shown({}, {"kv_blocks": 3}, decisions=1, live=True)
    clock.now = 100
    assert standing.shown({}, {"kv_blocks": 3}, decisions=1, live=True) == {KEY: 300}
    assert standing.shown({KEY: 290}, {}, decisions=2, live=True) == {KEY: 300}
    assert standing.shown({KEY: 310}, {}, decisions=3, live=True) == {KEY: 310}


def test_of_an_engine_that_is_gone_nobody_waits() -> None:
    clock = Clock()
    standing = Standing(clock)
    standing.shown({KEY: 5}, {"kv_blocks": 1}, decisions=1, live=True)
    clock.now = 100
    assert standing.shown({KEY: 5}, {"kv_blocks": 1}, decisions=1, live=False) == {KEY: 5}


def test_a_fold_says_who_is_still_left_out_by_its_newest_decision() -> None:
    s = Script().arrived(1, prompt=1, at=0).arrived(2, prompt=1, at=0).arrived(3, prompt=1, at=0)
    s.scheduled(at=1, prefill=[(1, 0, 1)], waiting=2, deferred=[(2, "kv_blocks")], stop="kv_blocks")
    fold = RingFold(s.hello, s.ring_id, slo=None)
    fold.fold(s.chunk())
    assert fold.left_out == (1, {"kv_blocks": 2})
    n = len(s)
    fold.fold(s.finished(2, at=9, output=0, reason="abort").chunks(n)[1])
    assert fold.left_out == (1, {"kv_blocks": 1})
    n = len(s)
    fold.fold(s.scheduled(at=20, running=1).chunks(n)[1])
    assert fold.left_out == (2, {})
