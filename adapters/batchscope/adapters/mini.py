"""The bundled engine: six methods of its Scheduler instance are hooked.

    schedule -> SCHEDULED, RESUMED    update -> COMPLETED    add -> ARRIVED    preempt -> PREEMPTED
    finish -> FINISHED, for aborts and failures too    transferred -> TRANSFER

Of a request that is split over two engines each tells its own part, as they were two requests with
one key: the prefill engine the prompt and one token, the decode engine the tokens that it makes.

Not visible: the device's time inside a forward pass. The engine has no LoRA
and no request that its scheduler passes over. The waiting queue is counted, never looped over.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from batchscope.adapters import boot
from batchscope.adapters.base import Adapter, Handle
from batchscope.adapters.facts import NO_QUEUE, Decision, Progress, Queue, Request, Row, Traits
from batchscope.adapters.guard import Seam, Times
from batchscope.adapters.hello import own_version
from batchscope.schemas import reasons
from batchscope.schemas.reasons import DeferralReason, Provides
from batchscope.schemas.records import NULL32
from batchscope.schemas.ring import LEVEL_MEMBERS

EXACT, ABSENT = Provides.EXACT, Provides.ABSENT
LAUNCH = ("completed.padded_tokens", "completed.graph_mode")
"""What the cost model has nothing to say about."""
PROVIDES: dict[str, Provides] = {
    "arrived.engine_arrival_ns": EXACT,
    "arrived.key": EXACT,
    "arrived.external_key": ABSENT,
    "arrived.trace_lo": EXACT,
    "arrived.max_tokens": EXACT,
    "arrived.priority": EXACT,
    "arrived.model": ABSENT,
    "arrived.lora": ABSENT,
    "arrived.tenant": EXACT,
    "scheduled.schedule_ns": EXACT,
    "scheduled.budget_tokens": EXACT,
    "scheduled.draft_tokens": ABSENT,
    "scheduled.head_serial": EXACT,
    "scheduled.admission_stop": EXACT,
    "scheduled.kv_total_blocks": EXACT,
    "scheduled.kv_used_blocks": EXACT,
    "scheduled.kv_evictable_blocks": EXACT,
    "completed.at_ns": EXACT,
    "completed.forward_ns": ABSENT,
    "completed.padded_tokens": EXACT,
    "completed.graph_mode": EXACT,
    "finished.engine_queue_ns": ABSENT,
    "finished.engine_ttft_ns": EXACT,
    "finished.engine_e2e_ns": EXACT,
    "finished.output_tokens": EXACT,
    "preempted.lost_tokens": EXACT,
    "resumed.cached_tokens": EXACT,
    "transfer.at_ns": EXACT,
    "transfer.handshake_ns": EXACT,
    "transfer.wait_ns": EXACT,
    "transfer.bytes": EXACT,
    "transfer.blocks": EXACT,
    "blocked.at_ns": ABSENT,
    "delivered.at_ns": ABSENT,
}


def seams() -> tuple[Seam, ...]:
    """The hooked methods; the first one opens each iteration."""
    of = attrgetter("scheduler")
    return (
        Seam("scheduler.schedule", of, "schedule", after=on_schedule, opens=True),
        Seam("scheduler.update", of, "update", after=on_update, holds=True),
        Seam("scheduler.add", of, "add", after=on_add),
        Seam("scheduler.preempt", of, "preempt", after=on_preempt, before=on_preempt_entry),
        Seam("scheduler.finish", of, "finish", after=on_finish),
        Seam("scheduler.transferred", of, "transferred", after=on_transferred),
    )


def attach(
    engine: Any,
    env: Mapping[str, str] = os.environ,
    *,
    clock: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
) -> Handle:
    """Hook a bundled Engine, on the thread that steps it or before it steps. Never raises.

    Records carry `clock`: that of the engine, when it runs in virtual time, and a `wall` with it.
    """
    own = adapter(launches=hasattr(getattr(engine, "runner", None), "model"))
    return boot.attach(own, engine, env, clock=clock, wall=wall)


def adapter(*, launches: bool = False) -> Adapter:
    """The adapter as data, for a runner that launches batches on a device or one that doesn't."""
    return Adapter(
        kind="mini",
        seams=seams(),
        provides=PROVIDES if launches else PROVIDES | dict.fromkeys(LAUNCH, ABSENT),
        traits=Traits(id=attrgetter("request_id"), request=request, progress=progress),
        subject=lambda engine: Subject(engine.scheduler),
        hello=hello,
    )


@dataclass(slots=True)
class Subject:
    """What translations read beside their arguments: the scheduler, the one being preempted."""

    scheduler: Any
    victim: Progress | None = None


def on_schedule(watch: Any, times: Times, batch: Any) -> None:
    """schedule() -> batch."""
    entered, left, ours = times
    recorder, scheduler = watch.recorder, watch.subject.scheduler
    running, tokens = scheduler.running, batch.num_decode_tokens
    if (
        tokens == len(batch.members) == len(running)
        and not (batch.num_prefill_tokens or batch.resumed)
        and (running == recorder.decodes.settled or recorder.level < LEVEL_MEMBERS)
    ):
        blocks = scheduler.blocks
        pool = (blocks.total, blocks.used, blocks.evictable)
        spent, budget = left - entered - ours, NULL32 if batch.budget is None else batch.budget
        left_out = queue(scheduler, batch) if scheduler.waiting or batch.stop else NO_QUEUE
        if recorder.went_on(batch, tokens, left, spent, budget, left_out, pool):
            return
    for seq in batch.resumed:
        recorder.resumed(seq, at_ns=left, target_tokens=seq.target, cached_tokens=seq.num_cached)
    recorder.decided(
        batch, decision(scheduler, batch, at_ns=left, schedule_ns=left - entered - ours)
    )


def on_update(watch: Any, times: Times, _result: Any, batch: Any, tokens: Any) -> None:
    """update(batch, tokens) -> the finished."""
    recorder = watch.recorder
    usual = len(batch.members) == len(tokens) and not batch.launched
    if usual and recorder.came_back(batch, times[0]):
        return
    gone = _NOBODY
    if recorder.departed:
        iteration = recorder.in_flight(batch)
        gone = frozenset(r for r, last in recorder.departed.items() if last >= iteration)
    tokens_launched, graph = batch.launched or _NOT_LAUNCHED
    recorder.completed(
        batch,
        at_ns=times[0],
        emitted=emissions(batch, tokens, gone),
        padded_tokens=tokens_launched,
        graph_mode=_GRAPH[graph],
    )


def on_add(watch: Any, times: Times, _result: None, seq: Any) -> None:
    """add(seq), unless it was rejected."""
    watch.recorder.arrived(seq, at_ns=times[1])


def on_preempt_entry(watch: Any, seq: Any) -> None:
    """preempt(seq) forgets what had been computed."""
    watch.subject.victim = progress(seq)


def on_preempt(watch: Any, times: Times, _result: None, seq: Any) -> None:
    """preempt(seq): this scheduler preempts for want of blocks alone, and recomputes."""
    watch.recorder.preempted(
        seq, at_ns=times[1], before=watch.subject.victim, reason=_CODES[DeferralReason.KV_BLOCKS]
    )


def on_finish(watch: Any, times: Times, _result: None, seq: Any, reason: Any) -> None:
    """finish(seq, reason)."""
    watch.recorder.finished(
        seq,
        at_ns=times[1],
        reason=FINISH[reason.value],
        output_tokens=seq.generated,
        engine_ns=(
            None,
            since_arrival(seq, seq.first_token_ns),
            since_arrival(seq, seq.finished_ns),
        ),
    )


def on_transferred(watch: Any, _times: Times, _result: None, seq: Any, hop: Any) -> None:
    """transferred(seq, hop): a KV hop ended, at an instant that may lie before this call."""
    watch.recorder.transfer(
        seq,
        start_ns=hop.start_ns,
        at_ns=hop.end_ns,
        direction=_IN if hop.incoming else _OUT,
        blocks=hop.blocks,
        nbytes=hop.nbytes,
        handshake_ns=hop.handshake_ns,
        wait_ns=hop.wait_ns,
        peer=hop.peer,
        failed=hop.failed,
    )


def decision(scheduler: Any, batch: Any, *, at_ns: int, schedule_ns: int) -> Decision:
    """What the scheduler decided: members split by phase, the pool, who was left out and why."""
    blocks = scheduler.blocks
    waiting, code, head, left_out = queue(scheduler, batch)
    decodes, prefill = split(scheduler, batch)
    return Decision(
        at_ns,
        schedule_ns,
        batch.num_prefill_tokens,
        batch.num_decode_tokens,
        len(scheduler.running),
        waiting,
        decodes,
        [(m.seq, m.start, m.tokens) for m in prefill] if prefill else (),
        () if batch.num_decode_tokens == len(decodes) else drafts(batch),
        left_out,
        NULL32 if batch.budget is None else batch.budget,
        0,
        head,
        code,
        blocks.total,
        blocks.used,
        blocks.evictable,
    )


def queue(scheduler: Any, batch: Any) -> Queue:
    """(waiting, admission stop, where the scan stopped, rows of who was left out)."""
    waiting, stop = len(scheduler.waiting), batch.stop
    code = 0 if stop is None else STOP.get(stop.value, _UNKNOWN)
    return waiting, code, batch.stop_head, deferred(code, waiting) if code and waiting else ()


def split(scheduler: Any, batch: Any) -> tuple[list[Any], list[Any]]:
    """(sequences that decode, members that prefill), without a look at each where that is proved.

    A member is a running request, once. So with as many members as running requests they are the
    same, and those that decode are the running list without the prefill members at its end.
    """
    members, running = batch.members, scheduler.running
    prefill = last_prefill(batch) if batch.num_prefill_tokens else []
    if prefill is not None and len(members) == len(running):
        if not prefill:
            return running, []
        count = len(members) - len(prefill)
        if running[count:] == [m.seq for m in prefill]:
            return running[:count], prefill
    return [m.seq for m in members if not m.is_prefill], [m for m in members if m.is_prefill]


def last_prefill(batch: Any) -> list[Any] | None:
    """The prefill members when all are at the batch's end, by their sum of tokens; else None."""
    found = []
    left = batch.num_prefill_tokens
    for member in reversed(batch.members):
        if not member.is_prefill:
            break
        found.append(member)
        left -= member.tokens
    return None if left else found[::-1]


def drafts(batch: Any) -> list[tuple[Any, int]]:
    """Decode members with other than one token."""
    return [(m.seq, m.tokens) for m in batch.members if not m.is_prefill and m.tokens != 1]


def deferred(stop: int, waiting: int) -> tuple[Row, ...]:
    """Rows (requests, reason, position): all waiting alike, or the head and those behind it."""
    if stop in _GLOBAL:
        return ((waiting, stop, _AT["global"]),)
    rows = ((1, stop, _AT["head"]), (waiting - 1, stop, _AT["behind"]))
    return rows if waiting > 1 else rows[:1]


def emissions(batch: Any, tokens: Mapping[str, int], gone: frozenset[str]) -> list[tuple[Any, int]]:
    """(member, 0) for each that did not emit one token: none came, or it was `gone` before."""
    members = batch.members
    silent = len(members) - len(tokens)
    if not silent and not gone:
        return []
    last = last_prefill(batch) if batch.num_prefill_tokens and not gone else None
    rows = [(m.seq, 0) for m in last or () if m.seq.request_id not in tokens]
    if len(rows) == silent and not gone:
        return rows
    kept = tokens.keys() - gone
    return [(m.seq, 0) for m in members if m.seq.request_id not in kept]


def since_arrival(seq: Any, at_ns: int | None) -> int | None:
    """By the engine's own clock, None while it hasn't come."""
    return None if at_ns is None else at_ns - seq.arrival_ns


def request(seq: Any) -> Request:
    """Who it is."""
    return Request(
        prompt_tokens=len(seq.prompt),
        max_tokens=seq.max_tokens - seq.given,
        priority=seq.priority,
        engine_arrival_ns=seq.arrival_ns,
        tenant=seq.tenant,
        trace=seq.trace_context,
    )


def progress(seq: Any) -> Progress:
    """How far it is; a hit is known once it was admitted."""
    waiting = seq.status.value == "waiting"
    phase = _PREFILL if seq.num_computed < seq.target else _DECODE
    return Progress(
        seq.num_computed,
        seq.generated,
        None if waiting or seq.num_preemptions else seq.num_cached,
        seq.num_preemptions,
        0 if waiting else phase,
    )


def hello(engine: Any) -> dict[str, Any]:
    """Version, config and sizes; a runner without weights leaves theirs out."""
    config = engine.config
    return {
        "version": own_version(),
        "model_name": f"mini-{config.runner}",
        "role": config.role,
        "config": dataclasses.asdict(config),
        "block_tokens": config.block_size,
        **weights(engine.runner, config.model),
    }


def weights(runner: Any, model: Any) -> dict[str, int]:
    """Bytes of parameters and of one token's KV, where the runner has a model on a device."""
    if not hasattr(runner, "model") or not hasattr(runner, "cache"):
        return {}
    parameters = sum(p.numel() * p.element_size() for p in runner.model.parameters())
    width = model.num_layers * model.num_kv_heads * model.head_dim
    return {
        "param_bytes": parameters,
        "kv_bytes_per_token": 2 * width * runner.cache.element_size(),
    }


_NOBODY: frozenset[str] = frozenset()
_NOT_LAUNCHED = (NULL32, None)
_GRAPH = {
    None: 0,
    False: reasons.GraphMode.EAGER.code,
    True: reasons.GraphMode.FULL.code,
}
_CODES = reasons.codes(DeferralReason)
_PREFILL, _DECODE = reasons.Phase.PREFILL.code, reasons.Phase.DECODE.code
_IN, _OUT = reasons.Direction.IN.code, reasons.Direction.OUT.code
_UNKNOWN = _CODES[DeferralReason.UNKNOWN]
_GLOBAL = frozenset(_CODES[reason] for reason in reasons.GLOBAL_REASONS)
_AT = {position.value: code for position, code in reasons.codes(reasons.Position).items()}
STOP: Mapping[str, int] = {
    "token_budget": _CODES[DeferralReason.TOKEN_BUDGET],
    "max_seqs": _CODES[DeferralReason.MAX_REQUESTS],
    "no_blocks": _CODES[DeferralReason.KV_BLOCKS],
    "watermark": _CODES[DeferralReason.KV_WATERMARK],
    "preempted_this_step": _CODES[DeferralReason.PREEMPTION],
    "batch_held": _CODES[DeferralReason.POLICY],
    "admit_delay": _CODES[DeferralReason.PREFILL_THROTTLE],
    "admit_min_free": _CODES[DeferralReason.PREFILL_THROTTLE],
    "unaccepted": _CODES[DeferralReason.TRANSFER],
}
FINISH: Mapping[str, int] = {
    word.value: code
    for word, code in reasons.codes(reasons.FinishReason).items()
    if word.value in ("stop", "length", "abort", "error")
}
