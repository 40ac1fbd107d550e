"""vLLM, V1 engine: methods of its Scheduler instance are hooked, whichever subclass it is.

    schedule -> SCHEDULED, RESUMED, BLOCKED, UNBLOCKED    update_from_output -> COMPLETED
    add_request -> ARRIVED    _preempt_request -> PREEMPTED    _free_request -> FINISHED
    its KV connector's part in these -> TRANSFER    the core's execute_dummy_batch -> both, empty

vLLM finds us by the entry point `vllm.general_plugins` and calls `register` in the API server, the
engine core and every worker; something happens only where a scheduler is made, or a front end
(frontend.py). Not visible from here: device time, what a KV connector does inside a forward pass.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from batchscope.adapters import boot
from batchscope.adapters.base import Adapter, Handle
from batchscope.adapters.facts import NO_QUEUE, Decision, Queue, Traits
from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.vllm import about, admission, batches, dummies, requests, transfers, turns
from batchscope.adapters.vllm.caution import careful, say
from batchscope.adapters.vllm.shape import Shape, shape_of
from batchscope.adapters.vllm.view import NO_STEP, Now, View, view_of
from batchscope.schemas.reasons import Provides
from batchscope.schemas.records import NULL32
from batchscope.schemas.ring import LEVEL_MEMBERS

EXACT, ESTIMATED, ABSENT = Provides.EXACT, Provides.ESTIMATED, Provides.ABSENT
PROVIDES: Mapping[str, Provides] = {
    "arrived.engine_arrival_ns": EXACT,
    "arrived.key": EXACT,
    "arrived.external_key": EXACT,
    "arrived.trace_lo": EXACT,
    "arrived.max_tokens": EXACT,
    "arrived.priority": EXACT,
    "arrived.model": EXACT,
    "arrived.lora": EXACT,
    "arrived.tenant": ABSENT,
    "scheduled.schedule_ns": EXACT,
    "scheduled.budget_tokens": EXACT,
    "scheduled.draft_tokens": EXACT,
    "scheduled.head_serial": EXACT,
    "scheduled.admission_stop": EXACT,
    "scheduled.kv_total_blocks": EXACT,
    "scheduled.kv_used_blocks": EXACT,
    "scheduled.kv_evictable_blocks": ESTIMATED,
    "completed.at_ns": EXACT,
    "completed.forward_ns": ABSENT,
    "completed.padded_tokens": EXACT,
    "completed.graph_mode": EXACT,
    "finished.engine_queue_ns": EXACT,
    "finished.engine_ttft_ns": ABSENT,
    "finished.engine_e2e_ns": ABSENT,
    "finished.output_tokens": EXACT,
    "preempted.lost_tokens": EXACT,
    "resumed.cached_tokens": EXACT,
    "transfer.at_ns": EXACT,
    "transfer.handshake_ns": ABSENT,
    "transfer.wait_ns": ABSENT,
    "transfer.bytes": EXACT,
    "transfer.blocks": EXACT,
    "blocked.at_ns": EXACT,
    "delivered.at_ns": ABSENT,
}
"""With every feature of the newest version in use; `provides` takes back what this engine lacks."""


def register() -> None:
    """The plugin: watch for a scheduler and for a front end being made. Never raises; again is
    harmless.
    """
    if os.environ.get("BATCHSCOPE") != "0":
        _attempt(_watch_schedulers)
        _attempt(_watch_front_ends)


def _attempt(watch: Callable[[], None]) -> None:
    try:
        watch()
    except Exception as why:  # noqa: BLE001  (vLLM goes on without us)
        say(f"off, {why}")


def _watch_schedulers() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]

    if not hasattr(Scheduler.__init__, "batchscope"):
        Scheduler.__init__ = _announcing(Scheduler.__init__)


def _watch_front_ends() -> None:
    from batchscope.adapters.vllm import frontend

    frontend.watch()


def _announcing(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        attach(self)

    __init__.batchscope = True  # type: ignore[attr-defined]
    return __init__


def attach(scheduler: Any, env: Mapping[str, str] = os.environ) -> Handle:
    """Hook a Scheduler on the thread that steps it. Never raises; a vLLM that lacks something we
    need is left alone, one that the adapter was never run on stays dormant until it is asked.
    """
    if env.get("BATCHSCOPE") == "0":
        return boot.Off()
    try:
        made = adapter(scheduler)
        return boot.attach(made, scheduler, careful(env, shape_of(scheduler).version))
    except Exception as why:  # noqa: BLE001  (vLLM goes on without us)
        say(f"off, {why}")
        return boot.Off()


def adapter(scheduler: Any) -> Adapter:
    """The adapter for this scheduler, as data; UnsupportedError when it lacks what we need."""
    shape = shape_of(scheduler)
    now = Now()
    model = about.model_name(scheduler)
    return Adapter(
        kind="vllm",
        seams=seams(shape),
        provides=provides(shape, scheduler),
        traits=Traits(
            id=attrgetter("request_id"),
            request=functools.partial(requests.identity, model=model, random_ids=shape.random_ids),
            progress=lambda request: requests.progress(request, in_step=now.in_step),
        ),
        subject=lambda engine: view_of(engine, shape, now),
        hello=lambda engine: about.hello(engine, shape),
    )


def seams(shape: Shape) -> tuple[Seam, ...]:
    """The hooked methods; the first one opens each iteration. Up to 0.11 a preemption shows only
    in that the blocks of a running request are freed.
    """
    preempts_inline = shape.preempts == "free"
    owner = _blocks if preempts_inline else _itself
    return (
        Seam(
            "scheduler.schedule",
            _itself,
            "schedule",
            after=on_schedule,
            opens=True,
        ),
        Seam(
            "scheduler.update_from_output",
            _itself,
            "update_from_output",
            after=on_update,
            holds=True,
        ),
        Seam("scheduler.add_request", _itself, "add_request", after=on_add),
        Seam(
            "scheduler.preempt",
            owner,
            shape.preempts,
            after=on_preempt,
            before=on_preempt_entry,
        ),
        Seam("scheduler._free_request", _itself, "_free_request", after=on_finish),
        *((turns.SEAM,) if shape.sessions else ()),
        *(transfers.SEAMS if shape.hops else ()),
        *((dummies.seam(),) if shape.ranks > 1 else ()),
    )


def _itself(scheduler: Any) -> Any:
    return scheduler


def _blocks(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager


def provides(shape: Shape, scheduler: Any) -> Mapping[str, Provides]:
    """What this engine, with these settings, lets us see."""
    lacks = {
        "arrived.external_key": not shape.random_ids,
        "arrived.lora": not shape.lora_slots,
        "scheduled.draft_tokens": not shape.spec_tokens,
        "finished.engine_queue_ns": not getattr(scheduler, "log_stats", False),
        "transfer.at_ns": not shape.hops,
        "transfer.bytes": not (shape.hops and shape.counts_bytes),
        "transfer.blocks": not shape.hops or shape.groups > 1,
        "completed.padded_tokens": not shape.counts_graphs,
        "completed.graph_mode": not shape.counts_graphs,
    }
    fields = {**PROVIDES, **{field: ABSENT for field, lacking in lacks.items() if lacking}}
    if shape.watermark_blocks and shape.caches:
        fields["scheduled.admission_stop"] = ESTIMATED
    return fields


def on_schedule(
    watch: Any,
    times: Times,
    batch: Any,
    throttle_prefills: bool = False,  # noqa: FBT001, FBT002
    *_: Any,
    **__: Any,
) -> None:
    """schedule(throttle_prefills) -> SchedulerOutput.

    What a busy engine decides most of the time, that all who run decode one token more, is told at
    once and nobody's request is looked at.
    """
    view: View = watch.subject
    recorder, scheduler, shape = watch.recorder, view.scheduler, view.shape
    length, other = view.length, shape.holding
    view.held_back = shape.throttles and (throttle_prefills or shape.prefill_interval > 1)
    view.preempted, view.preempting = view.preempting, False
    if shape.hops:
        view.transfers.begin()
    running, tokens = scheduler.running, batch.total_num_scheduled_tokens
    if (
        tokens == len(running) == len(batch.num_scheduled_tokens)
        and tokens
        and not (batch.scheduled_new_reqs or view.prefilling or view.away or view.passed)
        and (running == recorder.decodes.settled or recorder.level < LEVEL_MEMBERS)
    ):
        entered, left, ours = times
        queue: Queue | None = NO_QUEUE
        if length(scheduler.waiting) or (other and length(getattr(scheduler, other))):
            queue = batches.queue(view, batch)
        if queue and recorder.went_on(
            batch,
            tokens,
            left,
            left - entered - ours,
            scheduler.max_num_scheduled_tokens,
            queue,
            batches.pool(view),
        ):
            return
    view.now.in_step = batch.num_scheduled_tokens
    try:
        recorder.scheduled(batch, _looked_at(watch, times, batch))
    finally:
        view.now.in_step = NO_STEP


def _looked_at(watch: Any, times: Times, batch: Any) -> Decision:
    """A decision of which more is to be told: who joined, came back, was passed over."""
    view: View = watch.subject
    entered, left, ours = times
    joined = batches.admitted(view, batch) if batch.scheduled_new_reqs or view.away else ()
    batches.note_queued(view, joined)
    if view.away:
        _tell_resumed(watch, batch, joined, at_ns=left)
    _tell_skipped(watch, at_ns=left)
    return batches.decision(view, batch, joined, at_ns=left, schedule_ns=left - entered - ours)


def _tell_resumed(watch: Any, batch: Any, joined: Sequence[Any], *, at_ns: int) -> None:
    for request in batches.resumed(watch.subject, joined):
        found = request.num_computed_tokens - batch.num_scheduled_tokens[request.request_id]
        watch.recorder.resumed(
            request, at_ns=at_ns, target_tokens=request.num_tokens, cached_tokens=found
        )


def _tell_skipped(watch: Any, *, at_ns: int) -> None:
    for request, reason, begins in admission.skipped(watch.subject):
        tell = watch.recorder.blocked if begins else watch.recorder.unblocked
        tell(request, at_ns=at_ns, reason=reason)


def on_update(
    watch: Any, times: Times, result: Any, scheduler_output: Any, model_runner_output: Any
) -> None:
    """update_from_output(scheduler_output, model_runner_output) -> outputs by client."""
    view: View = watch.subject
    shape, usual = view.shape, False
    apart = view.partial or view.errors or scheduler_output.scheduled_spec_decode_tokens
    if shape.plain and not (shape.one_output or apart) and len(result) == 1:
        (group,) = result.values()  # as many outputs as members: each emitted one token
        usual = len(group.outputs) == len(scheduler_output.num_scheduled_tokens)
    stats = None
    if shape.counts_graphs:
        stats = getattr(model_runner_output, "cudagraph_stats", None)
    at_ns = times[0]
    if not (usual and stats is None and watch.recorder.came_back(scheduler_output, at_ns)):
        emitted = () if usual else batches.emissions(view, result, scheduler_output)
        view.errors = 0
        padded, mode = (NULL32, 0) if stats is None else batches.launched(stats)
        watch.recorder.completed(
            scheduler_output,
            at_ns=at_ns,
            emitted=emitted,
            padded_tokens=padded,
            graph_mode=mode,
        )
    if view.fed:
        turns.begin_fed(watch, at_ns=times[1])
    if shape.hops:
        transfers.tell(watch, model_runner_output, at_ns=at_ns)


def on_add(watch: Any, times: Times, _result: None, request: Any) -> None:
    """add_request(request); of a session that is there it is the next input, or the end."""
    view, name = watch.subject, request.request_id
    known = view.scheduler.requests.get(name)
    if known is request:
        watch.recorder.arrived(request, at_ns=times[1])
    elif name in view.resting and known is not None:
        turns.begin(watch, known, at_ns=times[1])


def on_preempt_entry(watch: Any, request: Any, *_: Any, **__: Any) -> None:
    """What is about to be lost. Where blocks are freed, only a running request loses its place."""
    view: View = watch.subject
    running = request.status.name == "RUNNING"
    view.victim = requests.progress(request, in_step={}) if running else None


def on_preempt(watch: Any, times: Times, _result: None, request: Any, *_: Any, **__: Any) -> None:
    """Inside schedule() it is for want of blocks; else the cache is being reset."""
    view: View = watch.subject
    if view.victim is None:
        return
    view.preempting = watch.deciding
    view.prefilling.pop(request.request_id, None)
    view.away[request.request_id] = None
    reason = admission.BLOCKS if watch.deciding else admission.POLICY
    watch.recorder.preempted(request, at_ns=times[1], before=view.victim, reason=reason)


def on_finish(watch: Any, times: Times, _result: Any, request: Any, *_: Any, **__: Any) -> None:
    """_free_request(request): the one place through which every request leaves."""
    view: View = watch.subject
    queued = view.queued_ns.get(request.request_id)
    view.forget(request.request_id)
    if request.request_id in view.resting:  # its last turn has had its end
        view.resting.discard(request.request_id)
        return
    reason = requests.FINISH.get(request.status.name, requests.UNKNOWN_END)
    if reason == requests.ERROR_END:
        view.errors += 1
        view.transfers.spoil(request.request_id)
    watch.recorder.finished(
        request,
        at_ns=times[1],
        reason=reason,
        output_tokens=request.num_output_tokens,
        engine_ns=(queued, None, None),
    )
