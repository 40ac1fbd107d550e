"""Attaching as the environment says, and what a fork does to it. Called by every adapter."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from batchscope.adapters.attachment import Attachment
from batchscope.adapters.base import Adapter, Handle
from batchscope.schemas.ring import RingUnavailable, ring_folder

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
    wall: Callable[[], int] = time.time_ns,
) -> Handle:
    """Hook an engine as BATCHSCOPE says: 1 active, 0 not even wrapped, else dormant. `clock` and
    `wall` give ns; an engine in virtual time brings both, running alike.

    Never raises; where there can be no ring it leaves the engine alone and says so in one line.
    Attaching twice gives the first handle again.
    """
    if env.get("BATCHSCOPE") == "0":
        return Off()
    try:
        return _attached(engine, adapter) or _attach(adapter, engine, env, clock=clock, wall=wall)
    except Exception as why:  # noqa: BLE001  (the engine goes on without us)
        print(f"batchscope: off, {why}", file=sys.stderr)
        return Off()


def _attached(engine: Any, adapter: Adapter) -> Attachment | None:
    gate = adapter.seams[0]
    hook = getattr(gate.owner(engine), gate.attribute, None)
    watch = getattr(hook, "batchscope_watch", None)
    return watch if isinstance(watch, Attachment) and watch.attached else None


def _attach(
    adapter: Adapter,
    engine: Any,
    env: Mapping[str, str],
    *,
    clock: Callable[[], int],
    wall: Callable[[], int],
) -> Attachment:
    folder = ring_folder(env)
    if folder is None:
        raise RingUnavailable("no folder in memory for the ring: set BATCHSCOPE_DIR")
    _watch_forks()
    attachment = Attachment(adapter, engine, env, folder=folder, clock=clock, wall=wall)
    attachment.begin()
    _attachments.add(attachment)
    return attachment


def _watch_forks() -> None:
    if not _watching_forks:
        _watching_forks.append(True)
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for attachment in list(_attachments):
        attachment.reborn()
