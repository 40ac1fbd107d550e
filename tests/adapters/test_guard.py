"""A hook on plain functions: it must be invisible to the caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from batchscope.adapters.guard import Seam, exists, install, is_hook
from batchscope.schemas.records import NULL64
from batchscope.schemas.ring import LEVEL_BYTE


class Watcher:
    """Hooks share it; no ring is behind it."""

    def __init__(self) -> None:
        self.recorder: Any = SimpleNamespace(holding=False, observer_ns=None)
        self.clock: Callable[[], int] = time.monotonic_ns
        self.spent_ns = self.began_ns = 0
        self.unweighed = 2
        self.subject: Any = None
        self.page: Any = page(0)
        self.asked = 0
        self.deciding = False
        self.turns = 0
        self.weighed: list[int] = []
        self.faults: list[tuple[str, str, int]] = []

    def turn(self) -> None:
        self.turns += 1

    def weigh(self, interval_ns: int) -> None:
        self.unweighed = 2
        self.weighed.append(interval_ns)

    def fault(self, seam: str, error: Exception, *, in_a_row: int) -> None:
        self.faults.append((seam, str(error), in_a_row))


def page(asked: int) -> bytes:
    return bytes(LEVEL_BYTE) + bytes([asked])


class Base:
    def work(self, a: int, *, b: int = 0) -> int:
        """Adds."""
        return a + b


class Engine(Base):
    pass


def seam(after: Callable[..., None], **given: Any) -> Seam:
    return Seam("engine.work", lambda engine: engine, "work", after=after, **given)


def quiet(*args: Any, **kwargs: Any) -> None:
    return None


def test_arguments_result_and_name_pass_through() -> None:
    engine, seen = Engine(), list[Any]()
    install(
        seam(lambda watch, times, *rest, **named: seen.append((rest, named))), engine, Watcher()
    )
    assert engine.work(2, b=3) == 5
    assert seen == [((5, 2), {"b": 3})]
    assert (engine.work.__name__, engine.work.__doc__) == ("work", "Adds.")


def test_a_method_inherited_by_a_class_is_hooked_there_and_removed_again() -> None:
    watch, calls = Watcher(), list[Any]()
    patch = install(seam(lambda watch, times, result, own, a: calls.append(own)), Engine, watch)
    engine = Engine()
    assert engine.work(1) == 1
    assert calls == [engine]
    assert patch is not None
    assert patch.restore()
    assert "work" not in vars(Engine)
    assert not is_hook(Engine.work)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_whatever_the_original_raises_reaches_the_caller_untouched(
    kind: type[BaseException],
) -> None:
    raised, watch = kind("theirs"), Watcher()

    def failing() -> None:
        raise raised

    engine = SimpleNamespace(work=failing)
    install(seam(quiet), engine, watch)
    with pytest.raises(kind) as caught:
        engine.work()
    assert caught.value is raised
    assert watch.faults == []


def test_faults_in_a_row_are_counted_per_seam_and_a_success_ends_the_row() -> None:
    outcomes = iter([1, 1, 0, 1])

    def sometimes(*args: Any) -> None:
        if next(outcomes):
            raise ValueError("ours")

    engine, watch = Engine(), Watcher()
    install(seam(sometimes), engine, watch)
    assert [engine.work(n) for n in range(4)] == [0, 1, 2, 3]
    assert watch.faults == [("engine.work", "ours", n) for n in (1, 2, 1)]


def test_only_an_opening_seam_looks_at_the_control_page() -> None:
    opening, other = Engine(), Engine()
    watch = Watcher()
    install(seam(quiet, opens=True), opening, watch)
    install(seam(quiet), other, watch)
    watch.page = page(2)
    other.work(1)
    assert (watch.turns, watch.began_ns) == (0, 0)
    opening.work(1)
    assert watch.turns == 1
    assert watch.began_ns
    watch.asked = 2
    opening.work(1)
    assert watch.turns == 1


def test_an_opening_seam_hands_on_what_the_iteration_before_cost_and_has_some_weighed() -> None:
    ticks = iter(range(5, 1000, 10))
    watch, told = Watcher(), list[int]()
    watch.clock = lambda: next(ticks)
    engine = SimpleNamespace(open=lambda: told.append(watch.recorder.observer_ns), work=int)
    watched = replace(seam(quiet, opens=True), attribute="open")
    install(watched, engine, watch)
    install(seam(quiet), engine, watch)
    for _ in range(3):
        engine.open()  # four looks at the clock, 10 ns before the original and 10 after it
        engine.work()  # three, and 10 ns in all
    assert told == [NULL64, 30, 30]
    assert watch.weighed == [70]


def test_hooks_inside_see_whether_a_decision_is_being_made() -> None:
    watch, seen = Watcher(), list[bool]()
    inner = Engine()
    install(seam(lambda watch, *_: seen.append(watch.deciding)), inner, watch)
    outer = SimpleNamespace(work=lambda: inner.work(1))
    install(seam(quiet, opens=True), outer, watch)
    outer.work()
    inner.work(1)
    assert seen == [True, False]


def test_a_fault_ahead_of_a_decision_leaves_nobody_deciding() -> None:
    def raising(*_: Any) -> None:
        raise ValueError("ours")

    watch, engine = Watcher(), Engine()
    install(seam(quiet, opens=True, before=raising), engine, watch)
    assert engine.work(1) == 1
    assert (watch.deciding, len(watch.faults)) == (False, 1)


def test_what_ends_inside_a_seam_that_holds_is_held_until_its_own_record() -> None:
    watch, seen = Watcher(), list[bool]()
    engine = SimpleNamespace(work=lambda: seen.append(watch.recorder.holding))
    install(seam(quiet, holds=True), engine, watch)
    engine.work()
    assert seen == [True]


def test_a_dormant_hook_hands_all_arguments_on() -> None:
    watch = Watcher()
    watch.recorder = None
    engine = SimpleNamespace(work=lambda *args, **kwargs: (args, kwargs))
    install(seam(quiet, opens=True), engine, watch)
    assert engine.work() == ((), {})
    assert engine.work(1) == ((1,), {})
    assert engine.work(b=2) == ((), {"b": 2})


def test_time_of_hooks_inside_is_told_apart_from_the_originals_own() -> None:
    ticks = iter(range(0, 1000, 10))
    watch = Watcher()
    watch.clock = lambda: next(ticks)
    inner, times = Engine(), list[Any]()
    install(seam(quiet), inner, watch)
    outer = SimpleNamespace(work=lambda: inner.work(1))
    install(seam(lambda watch, spans, result: times.append(spans)), outer, watch)
    outer.work()
    # outer's hook and its original begin at 0, inner's at 10, it returns at 20, its hook ends at
    # 30; outer returns at 40, its hook ends at 50
    assert times == [(0, 40, 10)]
    assert watch.spent_ns == 20


def test_an_object_whose_attributes_are_fixed_has_no_seam() -> None:
    class Fixed:
        __slots__ = ()

        def work(self) -> None: ...

    assert exists(seam(quiet), Engine())
    assert not exists(seam(quiet), Fixed())
    assert not exists(Seam("x", lambda engine: engine.gone, "work", after=quiet), Engine())
    assert install(seam(quiet), Fixed(), Watcher()) is None
