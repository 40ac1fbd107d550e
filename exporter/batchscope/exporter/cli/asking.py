"""Asking a running engine for a detail level, and watching its ring for the answer.

The control word takes effect at the engine's next iteration: an idle engine answers when it works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from batchscope.schemas.records import BYE
from batchscope.schemas.ring import (
    LEVEL_OFF,
    Resident,
    RingError,
    RingReader,
    request_detach,
    roster,
    set_level,
)
from batchscope.schemas.ring.layout import FRAME_BYTES
from batchscope.schemas.ring.snapshot import NEWEST

POLL_S = 0.05


@dataclass
class Ear:
    """What a ring says from its newest segment on: how many records, the kind of the last one."""

    reader: RingReader
    heard: int = 0
    last_kind: int = 0

    @classmethod
    def on(cls, path: Path) -> Ear:
        """Listen from now on; OSError, RingError as opening a ring."""
        ear = cls(RingReader(path))
        ear.reader.seek(unix_ns=NEWEST)
        ear.listen()
        return ear

    def listen(self) -> int:
        """Take what came; how many records there were so far."""
        while (raw := self.reader.poll()) is not None:
            at = raw.offsets[-1] + FRAME_BYTES
            self.last_kind = int.from_bytes(raw.data[at : at + 2], "little")
            self.heard += len(raw.offsets)
        return self.heard


@dataclass
class Asked:
    """One engine that was asked, as it was seen last, and what became of it.

    outcome: asked (no answer yet), attached, detached, unchanged, gone, refused (`why` says it).
    """

    resident: Resident
    outcome: str = "asked"
    why: str = ""
    before: int = 0
    ear: Ear | None = field(default=None, repr=False)


Answer = Callable[[Asked, "Resident | None"], str]
"""(who was asked, as it is now or None when it left the folder) -> its outcome."""


def ask_level(folder: Path, residents: Sequence[Resident], level: int) -> list[Asked]:
    """Write the word of each; what is so already is unchanged."""
    return [_ask_level(folder, one, level) for one in residents]


def ask_to_leave(folder: Path, residents: Sequence[Resident]) -> list[Asked]:
    """Ask each to take its hooks off for good."""
    return [_said(one, partial(request_detach, folder, one.ring_uuid)) for one in residents]


def await_answers(folder: Path, asked: Sequence[Asked], *, answer: Answer, seconds: float) -> None:
    """Until all have answered or the time is over; those that didn't stay "asked"."""
    deadline = time.monotonic() + seconds
    while any(one.outcome == "asked" for one in asked):
        now = {one.ring_uuid: one for one in roster(folder)}
        for one in asked:
            if one.outcome == "asked":
                seen = now.get(one.resident.ring_uuid)
                one.outcome, one.resident = answer(one, seen), seen or one.resident
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_S)


def is_attached(asked: Asked, now: Resident | None) -> str:
    """Its ring is there and says more than before."""
    if now is None or not now.alive:
        return "gone"
    if now.ring is None:
        return "asked"
    if asked.ear is None:
        return "attached"
    return "attached" if asked.ear.listen() > asked.before else "asked"


def is_dormant(asked: Asked, now: Resident | None) -> str:
    """Its last word is a goodbye; who has no ring had nothing to stop."""
    if now is None or not now.alive:
        return "gone"
    if asked.ear is None:
        return "detached"
    asked.ear.listen()
    return "detached" if asked.ear.last_kind == BYE.kind else "asked"


def has_left(_: Asked, now: Resident | None) -> str:
    """Its control file is held no more."""
    return "detached" if now is None or not now.alive else "asked"


def _ask_level(folder: Path, resident: Resident, level: int) -> Asked:
    if resident.level == level and (level == LEVEL_OFF or resident.ring is not None):
        return Asked(resident, "unchanged")
    try:
        ear = Ear.on(resident.ring) if resident.ring else None
    except (OSError, RingError) as why:
        return Asked(resident, "refused", str(why))
    asked = _said(resident, partial(set_level, folder, resident.ring_uuid, level))
    asked.ear, asked.before = ear, ear.heard if ear else 0
    return asked


def _said(resident: Resident, say: Callable[[], None]) -> Asked:
    try:
        say()
    except (OSError, RingError) as why:
        return Asked(resident, "refused", str(why))
    return Asked(resident)
