"""Life of an attached adapter: dormant, growing its ring, active, gone. Made by boot.

The control page decides, once per iteration and without a system call. A dormant engine pays one
hook on its scheduler's decision and holds that page; the other hooks come and go with the records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from batchscope.adapters.base import Adapter
from batchscope.adapters.budget import budget_from
from batchscope.adapters.guard import FAULTS_IN_A_ROW, Faults, Patch, exists, install
from batchscope.adapters.hello import hello_for
from batchscope.adapters.naming import naming_from
from batchscope.adapters.recorder import Recorder
from batchscope.schemas.reasons import NoticeKind
from batchscope.schemas.ring import (
    LEVEL_BYTE,
    LEVEL_ITERATIONS,
    LEVEL_LEAVE,
    LEVEL_MEMBERS,
    LEVEL_OFF,
    Control,
    RingUnavailable,
    RingWriter,
    sweep,
)

WEIGHED_EVERY = 8
"""Iterations from one that is weighed against its interval to the next: to weigh takes as long as
to write a record."""

_NOTHING_ASKED = bytes([LEVEL_OFF] * (LEVEL_BYTE + 1))
_REOPEN = bytes([LEVEL_LEAVE] * (LEVEL_BYTE + 1))
"""Pages of an engine without a control file: leave it alone, or open one at the next step."""


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
        wall: Callable[[], int],
    ) -> None:
        self.recorder: Recorder | None = None
        self.clock, self._wall = clock, wall
        self.spent_ns = 0
        self.deciding = False
        self.subject = adapter.subject(engine)
        self.faults = Faults()
        self.budget = budget_from(env)
        self._adapter, self._engine, self._env, self._folder = adapter, engine, env, folder
        self._control: Control | None = None
        self.page: Any = _NOTHING_ASKED
        self.asked = LEVEL_OFF
        self._writer: RingWriter | None = None
        self._resting: Recorder | None = None
        self._most = LEVEL_MEMBERS
        self.began_ns = 0
        self.unweighed = WEIGHED_EVERY
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

    def begin(self) -> None:
        """Take a control file in the folder and hook the gate. When active, have the whole ring
        now, before the first step; RingUnavailable when that can't be, with nothing left behind.

        A dormant one leaves what is asked meanwhile to the thread that steps: it may be another.
        """
        self._missing = self._lacking()
        gate = self._adapter.seams[0]
        if gate.name in self._missing:
            raise RingUnavailable(f"this engine has no {gate.name}")
        self._hello = self._introduced()
        self._gate = install(gate, self._engine, self)
        try:
            page = self._open()
            sweep(self._folder)
            self._naming = naming_from(self._env, self._folder)
            self.page = page  # last: from now on the thread that steps may turn
            while self._hello["level"] != LEVEL_OFF and self.page[LEVEL_BYTE] != self.asked:
                self._turn()
        except Exception:
            self._leave(NoticeKind.FAULT, "no ring")
            raise

    def detach(self) -> None:
        """Restore what is still ours, say BYE, close. What others wrapped passes through now."""
        self._leave(NoticeKind.DETACHED, "asked to leave")

    def fault(self, seam: str, error: Exception, *, in_a_row: int) -> None:
        """Count a translation's fault; after three in a row of one seam go quiet for good."""
        self.faults.tell(self.recorder, seam, error, at_ns=self.clock())
        if in_a_row >= FAULTS_IN_A_ROW:
            self._leave(NoticeKind.DETACHED, f"{in_a_row} faults in a row at {seam}")

    def reborn(self) -> None:
        """In a forked child the ring is the parent's. Our own is opened at the first step, as few
        children step: one page of memory (0.25 ms on a busy machine), all else is the parent's.
        """
        if self._gate is None:
            return
        if self._control is not None:
            self._control.close()
        self.recorder = self._resting = self._control = self._writer = None
        self.page, self.asked = _REOPEN, LEVEL_OFF

    def turn(self) -> None:
        """Follow the control page at the next safe place, which is now."""
        self._guarded(self._turn)

    def weigh(self, interval_ns: int) -> None:
        """Every eighth iteration: less of us where we cost more than the budget."""
        self.unweighed = WEIGHED_EVERY
        if self.recorder is None:
            return
        busy_ns = interval_ns + self.recorder.completed_ns - self.began_ns
        if self.budget.exceeded(self.spent_ns, busy_ns if busy_ns > 0 else interval_ns):
            self._guarded(self._shed)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as why:  # noqa: BLE001  (the engine goes on without us)
            self._leave(NoticeKind.FAULT, str(why))
            print(f"batchscope: off, {why}", file=sys.stderr)

    def _introduced(self) -> dict[str, Any]:
        level = LEVEL_MEMBERS if self._env.get("BATCHSCOPE") == "1" else LEVEL_OFF
        return hello_for(self._adapter, self._engine, self._env, missing=self._missing, level=level)

    def _open(self) -> Any:
        """The page of a new control file, and a writer that has made nothing yet."""
        group = self._env.get("BATCHSCOPE_GROUP")
        size = self._env.get("BATCHSCOPE_RING_BYTES", "")
        self._writer = RingWriter(
            self._folder,
            self._hello,
            mono=self.clock,
            wall=self._wall,
            group=group,
            size=int(size) if size.isdigit() else None,
        )
        self._control = Control.create(
            self._folder,
            self._writer.ring_uuid,
            level=self._hello["level"],
            group=group,
            hello=self._hello,
        )
        return self._control.page

    def _turn(self) -> None:
        """Follow the control page; a ring that is still growing gets one more segment."""
        asked = self.page[LEVEL_BYTE]
        if self._control is None or self._writer is None:
            self.page = self._open()
        elif asked == LEVEL_LEAVE:
            self.detach()
        elif asked == LEVEL_OFF:
            self._pause()
            self.asked = asked
        elif self._writer.grow():
            self._resume(self._writer, min(asked, self._most))
            self.asked = asked

    def _resume(self, writer: RingWriter, level: int) -> None:
        if self.recorder is not None:
            self.recorder.set_level(level)
            return
        recorder = self._resting
        if recorder is None:
            recorder = Recorder(writer, self._adapter.traits, naming=self._naming, level=level)
            self._report_missing(recorder)
        recorder.set_level(level)
        self.subject = self._adapter.subject(self._engine)  # what it knew is from before the pause
        self.recorder, self._resting = recorder, None
        self.spent_ns = self.began_ns = 0
        self.unweighed = WEIGHED_EVERY
        self.budget.restart()
        self._hook_all()

    def _report_missing(self, recorder: Recorder) -> None:
        text = "this engine has no such function"
        for seam in sorted(self._missing):
            recorder.notice(NoticeKind.MISSING_SEAM, text, at_ns=self.clock(), seam=seam)

    def _hook_all(self) -> None:
        there = {patch.seam for patch in self._patches}
        seams = [seam for seam in self._adapter.seams[1:] if seam.name not in there]
        found = (install(seam, self._engine, self) for seam in seams)
        self._patches += [patch for patch in found if patch is not None]

    def _lacking(self) -> frozenset[str]:
        seams = self._adapter.seams
        return frozenset(seam.name for seam in seams if not exists(seam, self._engine))

    def _shed(self) -> None:
        """Over budget: first the members go, then we."""
        assert self.recorder is not None
        text = f"{self.budget.found:.1%} of the interval, the limit is {self.budget.share:.1%}"
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
        """The recorder is kept: raised again, serials go on where they stopped. So is a hook that
        others have wrapped.
        """
        if self.recorder is not None:
            self._resting, self.recorder = self.recorder, None
            self._resting.bye(at_ns=self.clock())
        self._patches = [patch for patch in self._patches if not patch.restore()]

    def _leave(self, kind: NoticeKind, text: str) -> None:
        """Whatever the reason: quiet first, then the originals, then the file."""
        recorder, self.recorder = self.recorder, None
        self.page, self.asked = _NOTHING_ASKED, LEVEL_OFF
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
    except Exception as why:  # noqa: BLE001  (the engine goes on without us)
        print(f"batchscope: the last words are lost, {why}", file=sys.stderr)
