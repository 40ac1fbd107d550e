"""Around an engine's function, never in its way: result and exceptions pass untouched.

A seam is data; `install` puts one hook there, `Patch.restore` takes it away if it is still ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from batchscope.adapters.recorder import Recorder
from batchscope.schemas.reasons import NoticeKind
from batchscope.schemas.records import NULL64
from batchscope.schemas.ring import LEVEL_BYTE

FAULTS_IN_A_ROW = 3
MOST_NOTICES = 16
_MISSING = object()

Times = tuple[int, int, int]
"""(entry, return, our own hooks' time inside) of the original's call, ns."""


@dataclass(frozen=True)
class Seam:
    """One function of the engine: `attribute` of `owner(engine)`.

    `before(watch, *args)` runs ahead of the original for what it will destroy; `after(watch,
    times, result, *args)` translates. Neither can fail the call. The seam that `opens` an
    iteration also looks at the control page; what one that `holds` ends is told after it.
    """

    name: str
    owner: Callable[[Any], Any]
    attribute: str
    after: Callable[..., None]
    before: Callable[..., None] | None = None
    opens: bool = False
    holds: bool = False


class Watch(Protocol):
    """What hooks share: where they write, what they have cost, who hears of faults."""

    recorder: Recorder | None
    clock: Callable[[], int]
    spent_ns: int
    """Our own time since the iteration began, but for what lies ahead of a hook's first look at the
    clock and behind its last.
    """
    began_ns: int
    """When the last one began, 0 before the first."""
    unweighed: int
    """Iterations until `weigh` is called, which sets this again."""
    subject: Any
    page: Any
    asked: int
    deciding: bool
    """Whether the original of the seam that opens an iteration is running."""

    def turn(self) -> None:
        """The control page doesn't say what was `asked` before; never raises."""

    def weigh(self, interval_ns: int) -> None:
        """The last iteration took so long, and what we cost in it is told; never raises."""

    def fault(self, seam: str, error: Exception, *, in_a_row: int) -> None:
        """A translation raised."""


@dataclass(frozen=True)
class Patch:
    """The installed hook of a seam and what was there before it."""

    seam: str
    owner: Any
    attribute: str
    hook: Callable[..., Any]
    saved: Any

    def restore(self) -> bool:
        """Put the identical original back; False, and nothing done, if others wrapped after us."""
        if vars(self.owner).get(self.attribute) is not self.hook:
            return False
        if self.saved is _MISSING:
            delattr(self.owner, self.attribute)
        else:
            setattr(self.owner, self.attribute, self.saved)
        return True


def install(seam: Seam, engine: Any, watch: Watch) -> Patch | None:
    """Hook a seam; None when the engine has no such function."""
    try:
        owner = seam.owner(engine)
        saved = vars(owner).get(seam.attribute, _MISSING)
        original = getattr(owner, seam.attribute)
        hook = _hook(seam, original, watch)
        setattr(owner, seam.attribute, hook)
    except (AttributeError, TypeError):
        return None
    return Patch(seam.name, owner, seam.attribute, hook, saved)


def exists(seam: Seam, engine: Any) -> bool:
    """Whether this engine has the function, on an object whose attributes can be replaced."""
    try:
        owner = seam.owner(engine)
        return hasattr(owner, "__dict__") and hasattr(owner, seam.attribute)
    except AttributeError:
        return False


def is_hook(function: Any) -> bool:
    """Whether this is one of ours."""
    return hasattr(function, "batchscope_watch")


def _hook(seam: Seam, original: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    before, after, clock = seam.before, seam.after, watch.clock
    opens, holds, level = seam.opens, seam.holds, LEVEL_BYTE
    in_a_row = 0

    def failed(error: Exception) -> None:
        nonlocal in_a_row
        in_a_row += 1
        watch.fault(seam.name, error, in_a_row=in_a_row)

    def hook(*args: Any, **kwargs: Any) -> Any:
        nonlocal in_a_row
        if opens and watch.page[level] != watch.asked:
            watch.turn()
        recorder = watch.recorder
        if recorder is None:  # dormant, a plain call saves half of what we cost
            return original(*args, **kwargs) if args or kwargs else original()
        began = entered = clock()
        if opens:  # no call here: in the cold caches of a real engine each one takes 2 us
            last, watch.began_ns = watch.began_ns, began
            recorder.observer_ns = watch.spent_ns if last else NULL64
            watch.unweighed -= 1
            if not watch.unweighed:
                watch.weigh(began - last)
                if watch.recorder is None:
                    return original(*args, **kwargs)
            watch.spent_ns = 0
            entered = clock()
        recorder.holding = holds or recorder.holding
        spent = watch.spent_ns
        if before is not None:
            try:
                before(watch, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  (whatever ours raises, the engine must not)
                failed(error)
                return original(*args, **kwargs)
            entered = clock()
        watch.deciding = opens or watch.deciding
        result = original(*args, **kwargs)
        left = clock()
        watch.deciding = watch.deciding and not opens
        if watch.recorder is None:
            return result
        try:
            after(watch, (entered, left, watch.spent_ns - spent), result, *args, **kwargs)
            in_a_row = 0
        except Exception as error:  # noqa: BLE001  (whatever ours raises, the engine must not)
            failed(error)
        watch.spent_ns += clock() - left + entered - began
        return result

    hook.batchscope_watch = watch  # type: ignore[attr-defined]
    return functools.update_wrapper(
        hook, original, assigned=("__name__", "__doc__", "__qualname__"), updated=()
    )


class Faults:
    """Faults by kind: each is counted, each kind is said once, and the kinds said are bounded."""

    def __init__(self) -> None:
        self.count = 0
        self._said: set[str] = set()

    def tell(self, recorder: Recorder | None, seam: str, error: Exception, *, at_ns: int) -> None:
        """Count a fault and write its NOTICE; a ring that can't take it keeps the count only."""
        self.count += 1
        if recorder is None:
            return
        recorder.distrust()
        kind = f"{seam}: {type(error).__name__}"
        if kind in self._said or len(self._said) >= MOST_NOTICES:
            return
        self._said.add(kind)
        try:
            text = f"{kind}: {error}"
            recorder.notice(NoticeKind.FAULT, text, at_ns=at_ns, seam=seam, count=self.count)
        except Exception:  # noqa: BLE001  (counted, nothing more can be done)
            self.count += 1
