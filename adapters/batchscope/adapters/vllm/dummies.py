"""Steps that a data-parallel rank runs without requests, so that the others' experts have theirs.

The engine core runs them past its scheduler; it is found by its class, which is hooked only in
an engine of several ranks.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.vllm import batches

CORE = "vllm.v1.engine.core"
NOTHING = SimpleNamespace(
    num_scheduled_tokens={}, total_num_scheduled_tokens=0, scheduled_spec_decode_tokens={}
)
"""A batch without members, as far as one is looked at."""


def seam() -> Seam:
    """The core's own function; a rank without requests looks at the control words here."""
    return Seam(
        "core.execute_dummy_batch",
        _core,
        "execute_dummy_batch",
        after=on_dummy,
        before=on_dummy_entry,
        opens=True,
    )


def _core(_scheduler: Any) -> Any:
    """The class EngineCore; whoever steps a scheduler without it runs no dummies."""
    return getattr(sys.modules.get(CORE), "EngineCore", None)


def on_dummy_entry(watch: Any, core: Any, *_: Any, **__: Any) -> None:
    """An iteration of nobody begins; whoever waits does so for the reason schedule() left."""
    if core.scheduler is watch.subject.scheduler:
        at_ns = watch.clock()
        decided = batches.decision(watch.subject, NOTHING, (), at_ns=at_ns, schedule_ns=0)
        watch.recorder.scheduled(core, decided._replace(dummy=1))


def on_dummy(watch: Any, times: Times, _result: Any, core: Any, *_: Any, **__: Any) -> None:
    """It is over; of another engine in this process nothing is told."""
    if core.scheduler is watch.subject.scheduler:
        watch.recorder.completed(core, at_ns=times[1])
