"""Life of an attached adapter: dormant, growing its ring, active, gone. Loaded by whoever starts an engine.

The control word decides, once per iteration and without a system call. A dormant engine pays one hook on
its scheduler's decision and holds one page.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchscope.adapters.base import Adapter, Handle
from batchscope.adapters.budget import budget_from
from batchscope.adapters.guard import FAULTS_IN_A_ROW, Faults, Patch, install
from batchscope.adapters.hello import hello_for
from batchscope.adapters.naming import naming_from
from batchscope.adapters.recorder import Recorder
from batchscope.schemas.reasons import NoticeKind
from batchscope.schemas.ring import (
    LEVEL_ITERATIONS,
    LEVEL_MEMBERS,
    LEVEL_OFF,
    Control,
    RingUnavailable,
    RingWriter,
    ring_folder,
)

_attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()
_watching_forks: list[bool] = []


class Off:
    """The handle of an engine that nothing was done to."""

    attached = False
    ring_uuid = None

    def detach(self) -> None:
        """Nothing to undo."""


def attach(
    adapter: Adapter,
    engine: Any,
    env: Mapping[str, str],
    *,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Handle:
    """Hook an engine as BATCHSCOPE says: 1 active, 0 not even wrapped, else dormant until asked for.

    Never raises; where there can be no ring it leaves the engine alone and says so in one line. Attaching
    twice gives the first handle again.
    """
    if env.get("BATCHSCOPE") == "0":
        return Off()
    try:
        return _attached(engine, adapter) or _attach(adapter, engine, env, clock)
    except Exception as why:
        print(f"batchscope: off, {why}", file=sys.stderr)
        return Off()


def _attached(engine: Any, adapter: Adapter) -> Attachment | None:
    gate = adapter.seams[0]
    hook = getattr(gate.owner(engine), gate.attribute, None)
    watch = getattr(hook, "batchscope_watch", None)
    return watch if isinstance(watch, Attachment) and watch.attached else None


def _attach(
    adapter: Adapter, engine: Any, env: Mapping[str, str], clock: Callable[[], int]
) -> Attachment:
    folder = ring_folder(env)
    if folder is None:
        raise RingUnavailable("no folder in memory for the ring: set BATCHSCOPE_DIR")
    _watch_forks()
    attachment = Attachment(adapter, engine, env, folder=folder, clock=clock)
    attachment.begin(LEVEL_MEMBERS if env.get("BATCHSCOPE") == "1" else LEVEL_OFF)
    _attachments.add(attachment)
    return attachment


class Attachment:
    """One adapter on one engine: a Handle to its owner, a Watch to its hooks."""

    def __init__(
        self,
        adapter: Adapter,
        engine: Any,
        env: Mapping[str, str],
        *,
        folder: Path,
        clock: Callable[[], int],
    ) -> None:
        self.recorder: Recorder | None = None
        self.clock = clock
        self.spent_ns = 0
        self.subject = adapter.subject(engine)
        self.faults = Faults()
        self.budget = budget_from(env)
        self._adapter, self._engine, self._env, self._folder = adapter, engine, env, folder
        self._control: Control | None = None
        self._writer: RingWriter | None = None
        self._asked: int | None = LEVEL_OFF
        self._most = LEVEL_MEMBERS
        self._entered_ns = 0
        self._gate: Patch | None = None
        self._patches: list[Patch] = []
        self._missing: frozenset[str] = frozenset()

    @property
    def attached(self) -> bool:
        """Whether the gate is still ours to answer for."""
        return self._gate is not None

    @property
    def ring_uuid(self) -> str | None:
        """The ring's name, also before there is a ring."""
        return None if self._writer is None else self._writer.ring_uuid

    def begin(self, level: int) -> None:
        """Take the folder's control file and hook the gate; when active, have the whole ring before the first step."""
        self._missing = self._lacking()
        gate = self._adapter.seams[0]
        if gate.name in self._missing:
            raise RingUnavailable(f"this engine has no {gate.name}")
        self._open(level)
        self._gate = install(gate, self._engine, self, gate=self._tick)
        while level and self._asked != level:
            self._turn()

    def detach(self) -> None:
        """Restore what is still ours, say BYE, close. What others have wrapped passes through from now on."""
        self._leave(NoticeKind.DETACHED, "asked to leave")

    def fault(self, seam: str, error: Exception, *, in_a_row: int) -> None:
        """Count a translation's fault; after three in a row of one seam go quiet for good."""
        self.faults.tell(self.recorder, seam, error, at_ns=self.clock())
        if in_a_row >= FAULTS_IN_A_ROW:
            self._leave(NoticeKind.DETACHED, f"{in_a_row} faults in a row at {seam}")

    def reborn(self) -> None:
        """In a forked child: the ring is the parent's; one of our own is opened at the first step, if any."""
        self.recorder = None
        self._asked = None
        if self._control is not None:
            self._control.close()
        self._control = self._writer = None

    # -- on the stepping thread ----------------------------------------------------------------------

    def _tick(self) -> None:
        """Once per iteration: two words of mapped memory, and the account of the iteration before."""
        control = self._control
        if control is None:
            if self._asked is None and self._gate is not None:
                self._guarded(self._reopen)
            return
        if control.level() != self._asked or control.detach_requested():
            self._guarded(self._turn)
        if self.recorder is not None:
            self._account(self.recorder)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as why:
            self._leave(NoticeKind.FAULT, str(why))
            print(f"batchscope: off, {why}", file=sys.stderr)

    def _reopen(self) -> None:
        self._asked = LEVEL_OFF
        self._open(LEVEL_MEMBERS if self._env.get("BATCHSCOPE") == "1" else LEVEL_OFF)

    def _open(self, level: int) -> None:
        group = self._env.get("BATCHSCOPE_GROUP")
        hello = hello_for(
            self._adapter, self._engine, self._env, missing=self._missing, level=level
        )
        self._writer = RingWriter(self._folder, hello, mono=self.clock, group=group)
        self._control = Control.create(
            self._folder, self._writer.ring_uuid, level=level, group=group
        )
        self._naming = naming_from(self._env, self._folder)

    def _turn(self) -> None:
        """Follow the control word; a ring that is still growing gets one more segment."""
        assert self._control is not None
        assert self._writer is not None
        level = self._control.level()
        if self._control.detach_requested():
            self.detach()
        elif level == LEVEL_OFF:
            self._pause()
            self._asked = level
        elif self._writer.grow():
            self._resume(level)
            self._asked = level

    def _resume(self, level: int) -> None:
        level = min(level, self._most)
        if self.recorder is not None:
            self.recorder.set_level(level)
            return
        assert self._writer is not None
        self.recorder = Recorder(
            self._writer, self._adapter.traits, naming=self._naming, level=level
        )
        self.spent_ns = self._entered_ns = 0
        self.budget.restart()
        for name in sorted(self._missing):
            self.recorder.notice(
                NoticeKind.MISSING_SEAM,
                "this engine has no such function",
                at_ns=self.clock(),
                seam=name,
            )
        self._hook_all()

    def _hook_all(self) -> None:
        if self._patches:
            return
        found = (install(seam, self._engine, self) for seam in self._adapter.seams[1:])
        self._patches = [patch for patch in found if patch is not None]

    def _lacking(self) -> frozenset[str]:
        lacking = set()
        for seam in self._adapter.seams:
            try:
                getattr(seam.owner(self._engine), seam.attribute)
            except AttributeError:
                lacking.add(seam.name)
        return frozenset(lacking)

    def _account(self, recorder: Recorder) -> None:
        """Hand the cost of the iteration before to its record, and weigh it against the interval."""
        now, cost = self.clock(), self.spent_ns
        entered, self._entered_ns = self._entered_ns, now
        self.spent_ns = 0
        if not entered:
            return
        recorder.observer_ns = cost
        busy = recorder.completed_ns - entered
        if self.budget.exceeded(cost, busy if busy > 0 else now - entered):
            self._guarded(self._shed)

    def _shed(self) -> None:
        """Over budget: first the members go, then we."""
        assert self.recorder is not None
        share = self.budget.cost_ns / max(1.0, self.budget.interval_ns)
        text = f"{share:.1%} of the interval, the limit is {self.budget.share:.1%}"
        if self.recorder.level < LEVEL_MEMBERS:
            self._leave(NoticeKind.OVER_BUDGET, f"{text}: detached")
            return
        self._most = LEVEL_ITERATIONS
        self.recorder.set_level(LEVEL_ITERATIONS)
        self.recorder.notice(
            NoticeKind.OVER_BUDGET, f"{text}: members left out", at_ns=self.clock()
        )
        self.budget.restart()

    def _pause(self) -> None:
        if self.recorder is not None:
            recorder, self.recorder = self.recorder, None
            recorder.bye(at_ns=self.clock())

    def _leave(self, kind: NoticeKind, text: str) -> None:
        """Whatever the reason: quiet first, then the originals, then the file."""
        recorder, self.recorder = self.recorder, None
        patches = [*self._patches, *([self._gate] if self._gate else [])]
        self._patches, self._gate = [], None
        for patch in patches:
            patch.restore()
        if recorder is not None:
            _say_goodbye(recorder, kind, text, at_ns=self.clock())
        if self._control is not None:
            self._control.close(unlink=self._writer is not None and not self._writer.ready)
            self._control = None
        if self._writer is not None:
            self._writer.close()


def _say_goodbye(recorder: Recorder, kind: NoticeKind, text: str, *, at_ns: int) -> None:
    try:
        recorder.notice(kind, text, at_ns=at_ns)
        recorder.bye(at_ns=at_ns)
    except Exception as why:
        print(f"batchscope: the last words are lost, {why}", file=sys.stderr)


def _watch_forks() -> None:
    if not _watching_forks:
        _watching_forks.append(True)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for attachment in list(_attachments):
        attachment.reborn()
