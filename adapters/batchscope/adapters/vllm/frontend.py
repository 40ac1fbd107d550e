"""vLLM's front end: when tokens were handed to the streams of clients, in the API server's process.

    OutputProcessor.process_outputs -> DELIVERED, FINISHED    add_request -> ARRIVED

One ring for each, of role frontend, with the request keys of the core's ring. Its monotonic clock
is the core's where both are on one machine. Not visible from here: what the web server does to a
token that a stream holds, and the network.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from batchscope.adapters import boot
from batchscope.adapters.base import Adapter, Handle
from batchscope.adapters.facts import Traits
from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.vllm import about
from batchscope.adapters.vllm.caution import careful, say
from batchscope.adapters.vllm.guests import Guest, Guests, facts_of, guests_of
from batchscope.adapters.vllm.shape import UnsupportedError, has_random_ids, takes, vllm_version
from batchscope.schemas.reasons import Provides, Role

EXACT = Provides.EXACT
PROVIDES: Mapping[str, Provides] = {
    "arrived.engine_arrival_ns": EXACT,
    "arrived.key": EXACT,
    "arrived.external_key": EXACT,
    "arrived.max_tokens": EXACT,
    "arrived.model": EXACT,
    "finished.output_tokens": EXACT,
    "delivered.at_ns": EXACT,
    "delivered.ready_at_ns": EXACT,
}
METHODS = {"process_outputs": 3, "add_request": 2}
FIELDS = ("request_states",)


def watch() -> None:
    """Have every front end that is made from now on attached to; again is harmless."""
    from vllm.v1.engine.output_processor import OutputProcessor  # type: ignore[import-not-found]

    if not hasattr(OutputProcessor.__init__, "batchscope"):
        OutputProcessor.__init__ = _announcing(OutputProcessor.__init__)


def _announcing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        # AsyncLLM and LLMEngine make it and hand nothing on of the settings they were given
        attach(self, vllm_config=sys._getframe(1).f_locals.get("vllm_config"))

    __init__.batchscope = True  # type: ignore[attr-defined]
    return __init__


def attach(
    processor: Any, env: Mapping[str, str] = os.environ, *, vllm_config: Any = None
) -> Handle:
    """Hook an OutputProcessor on the thread that feeds it. Never raises; like the scheduler's."""
    if env.get("BATCHSCOPE") == "0":
        return boot.Off()
    try:
        made = adapter(processor, vllm_config)
        return boot.attach(made, processor, careful(env, vllm_version()))
    except Exception as why:  # noqa: BLE001  (vLLM goes on without us)
        say(f"front end off, {why}")
        return boot.Off()


def adapter(
    processor: Any, vllm_config: Any = None, *, wall: Callable[[], float] = time.time
) -> Adapter:
    """The adapter for this front end, as data; UnsupportedError when it lacks what we need."""
    lacking = [name for name in FIELDS if not hasattr(processor, name)]
    lacking += [name for name, n in METHODS.items() if not takes(processor, name, n)]
    if lacking:
        raise UnsupportedError(f"vLLM {vllm_version()} has no {', '.join(lacking)}: left alone")
    model = None if vllm_config is None else about.model_name(vllm_config)
    random_ids = has_random_ids()
    facts = functools.partial(facts_of, model=model, random_ids=random_ids)
    return Adapter(
        kind="vllm",
        seams=SEAMS,
        provides={**PROVIDES, **({} if random_ids else {"arrived.external_key": Provides.ABSENT})},
        traits=Traits(
            id=attrgetter("request_id"),
            request=lambda guest: guest.facts,
            progress=lambda guest: guest.progress(),
        ),
        subject=lambda of: guests_of(of, facts=facts, wall=wall),
        hello=lambda _: {
            "version": vllm_version(),
            "model_name": model,
            "role": Role.FRONTEND.value,
            "dp_rank": None,
        },
    )


def on_add(watch: Any, _times: Times, _result: None, request: Any, *_: Any, **__: Any) -> None:
    """add_request(request, ...); further input of a request that is there is not an arrival."""
    guest = watch.subject.welcome(request)
    if guest is not None:
        # by two clocks that are read side by side: a thread that lost its core since the original
        # returned would put that time into the way to here
        watch.recorder.arrived(guest, at_ns=watch.clock() - guest.came_ns)


def on_outputs_entry(watch: Any, *_: Any, **__: Any) -> None:
    """Tell of those who left meanwhile without an output: aborted, or failed with the core."""
    left = watch.subject.missed()
    if left:
        _tell_left(watch, left, at_ns=watch.clock())


def on_outputs(
    watch: Any,
    times: Times,
    _result: Any,
    engine_core_outputs: Sequence[Any],
    engine_core_timestamp: float | None = None,
    *_: Any,
    **__: Any,
) -> None:
    """process_outputs(outputs, the core's stamp of them, ...): they are in the streams by now."""
    here: Guests = watch.subject
    known = here.known
    came = [
        (guest, len(output.new_token_ids))
        for output in engine_core_outputs
        if (guest := known.get(output.request_id)) is not None
    ]
    given, left = here.settled(came, engine_core_outputs)
    if given:
        ready = round(engine_core_timestamp * 1e9) if engine_core_timestamp else None
        guests, tokens = zip(*given, strict=True)
        watch.recorder.delivered(guests, tokens, at_ns=times[1], ready_at_ns=ready)
        for guest, n in given:
            guest.tokens += n
    _tell_left(watch, left, at_ns=times[1])


def _tell_left(watch: Any, left: Sequence[tuple[Guest, int]], *, at_ns: int) -> None:
    for guest, reason in left:
        watch.recorder.finished(guest, at_ns=at_ns, reason=reason, output_tokens=guest.tokens)


def _itself(processor: Any) -> Any:
    return processor


SEAMS = (
    Seam(
        "output_processor.process_outputs",
        _itself,
        "process_outputs",
        after=on_outputs,
        before=on_outputs_entry,
        opens=True,
    ),
    Seam("output_processor.add_request", _itself, "add_request", after=on_add),
)
