"""Attaching to engines that are already there, in a process that did not load us at its start.

Run inside the engine's process by a debugger's door, on its main thread (`sys.remote_exec`) or on
one of our own (`attach --inject`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

from batchscope.adapters.base import Handle

ENGINES = (
    ("vllm.v1.core.sched.scheduler", "Scheduler", "batchscope.adapters.vllm"),
    ("vllm.v1.engine.output_processor", "OutputProcessor", "batchscope.adapters.vllm.frontend"),
    ("batchscope.engine.engine", "Engine", "batchscope.adapters.mini"),
)
"""(module, class, adapter): what an adapter's `attach` takes."""


def attach_all(env: Mapping[str, str]) -> list[Handle]:
    """Attach to every engine of this process. Never raises for one that can't be attached to.

    Dormant, unless BATCHSCOPE is 0, whatever else it says: a ring is grown by the thread that
    steps, which need not be this one.
    """
    env = {name: value for name, value in env.items() if (name, value) != ("BATCHSCOPE", "1")}
    handles: list[Handle] = []
    for module, name, adapter in ENGINES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            attach = import_module(adapter).attach
            handles += [attach(engine, env) for engine in instances(kind)]
    return handles


def instances(kind: type) -> list[Any]:
    """Objects of a class: those on a thread's stack first, all that are tracked where none is.

    A serving loop holds its engine on the stack, and a scan of all objects stops a large process
    for long; engines that froze the collector's heap would not even be found by it.
    """
    on_stack = {id(each): each for each in _on_stacks() if isinstance(each, kind)}
    found = on_stack or {id(each): each for each in gc.get_objects() if isinstance(each, kind)}
    return list(found.values())


def _on_stacks() -> Iterator[Any]:
    """What the frames of all threads name, and what these objects hold in attributes."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            for value in list(frame.f_locals.values()):
                yield value
                yield from list(getattr(value, "__dict__", {}).values())
            frame = frame.f_back
