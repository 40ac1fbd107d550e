"""A batch in our terms: members by phase, tokens, the pool, and who emitted what. Pure reads.

Only members that are new or still inside their prompt are looked at one by one; the others are the
running list without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from batchscope.adapters.facts import NO_QUEUE, Decision, Pool, Queue
from batchscope.adapters.vllm import admission
from batchscope.adapters.vllm.requests import Gone, queue_ns
from batchscope.adapters.vllm.view import View
from batchscope.schemas import reasons
from batchscope.schemas.reasons import GraphMode

Prefill = tuple[Any, int, int]

_GRAPH = reasons.codes(GraphMode)
GRAPH_MODE = {
    "NONE": _GRAPH[GraphMode.EAGER],
    "PIECEWISE": _GRAPH[GraphMode.PIECEWISE],
    "FULL": _GRAPH[GraphMode.FULL],
}


class Split(NamedTuple):
    """Members of a batch by phase; `drafts` are decode members with other than one token."""

    decodes: Sequence[Any]
    prefill: Sequence[Prefill]
    prefill_tokens: int
    drafts: Sequence[tuple[Any, int]]
    draft_tokens: int


def queue(view: View, batch: Any) -> Queue | None:
    """(waiting, admission stop, where the scan stopped, rows of who was left out) of a decision
    that admitted nobody; None where some of them were skipped: each of these is to be looked at.
    """
    scheduler, shape = view.scheduler, view.shape
    if not shape.passed_over or getattr(scheduler, shape.passed_over):
        return None
    waiting = view.waiting()
    return (waiting, *admission.left_out(view, batch, waiting))


def decision(
    view: View, batch: Any, joined: Sequence[Any], *, at_ns: int, schedule_ns: int
) -> Decision:
    """What schedule() decided; `joined` are the admitted. `view.passed` must be up to date."""
    scheduler = view.scheduler
    running, tokens = scheduler.running, batch.total_num_scheduled_tokens
    if (
        not joined
        and not view.prefilling
        and tokens == len(running) == len(batch.num_scheduled_tokens)
    ):
        parts = Split(running, (), 0, (), 0)
    else:
        parts = split(view, batch, joined)
    waits = view.waiting()
    left_out = (waits, *admission.left_out(view, batch, waits)) if waits else NO_QUEUE
    waiting, code, head, deferred = left_out
    total, used, evictable = pool(view)
    return Decision(
        at_ns,
        schedule_ns,
        parts.prefill_tokens,
        tokens - parts.prefill_tokens,
        len(running),
        waiting,
        parts.decodes,
        parts.prefill,
        parts.drafts,
        deferred,
        scheduler.max_num_scheduled_tokens,
        parts.draft_tokens,
        head,
        code,
        total,
        used,
        evictable,
    )


def admitted(view: View, batch: Any) -> list[Any]:
    """New requests and resumed ones; under the second model runner both are listed as new."""
    requests, scheduled = view.scheduler.requests, batch.num_scheduled_tokens
    fresh = [requests[new.req_id] for new in batch.scheduled_new_reqs]
    if view.past:
        for request in fresh:
            view.past.pop(request.request_id, None)
    if not view.away:
        return fresh
    new = {request.request_id for request in fresh}
    back = [i for i in view.away if i in scheduled and i not in new]
    return fresh + [requests[i] for i in back]


def note_queued(view: View, joined: Iterable[Any]) -> None:
    """Keep vLLM's own queue time of who was admitted first now, until its end is told."""
    for request in joined:
        waited = queue_ns(request)
        if waited is not None:
            view.queued_ns.setdefault(request.request_id, waited)


def resumed(view: View, joined: Iterable[Any]) -> list[Any]:
    """Those of the admitted that had been preempted; they are away no longer."""
    back = [request for request in joined if request.request_id in view.away]
    for request in back:
        del view.away[request.request_id]
    return back


def split(view: View, batch: Any, joined: Iterable[Any]) -> Split:
    """Members by phase. Decode members emit one token each, drafts apart: where that does not add
    up, a chunk was taken for a decode (we joined late), and all are looked at again.
    """
    view.partial.pop(id(batch), None)  # of a batch that never came back
    for request in joined:
        view.prefilling[request.request_id] = request.num_tokens
    found = _split(view, batch)
    surplus = batch.total_num_scheduled_tokens - found.prefill_tokens - len(found.decodes)
    if surplus and not batch.scheduled_spec_decode_tokens and view.shape.plain:
        view.look()
        found = _split(view, batch)
        surplus = batch.total_num_scheduled_tokens - found.prefill_tokens - len(found.decodes)
    if not surplus:
        return found
    return found._replace(drafts=_drafts(batch, found), draft_tokens=_draft_tokens(batch, surplus))


def _split(view: View, batch: Any) -> Split:
    prefill = _prefill(view, batch) if view.prefilling else []
    tokens = sum([row[2] for row in prefill])
    return Split(_decodes(view, batch, prefill), prefill, tokens, (), 0)


def _prefill(view: View, batch: Any) -> list[Prefill]:
    """(request, start, tokens) of the prompt or of what was lost; vLLM has advanced them."""
    prefilling, scheduled = view.prefilling, batch.num_scheduled_tokens
    requests = view.scheduler.requests
    rows: list[Prefill] = []
    partial: list[str] = []
    done: list[str] = []
    for request_id, target in prefilling.items():
        tokens = scheduled.get(request_id)
        if tokens is None:
            continue
        request = requests[request_id]
        computed = request.num_computed_tokens
        start = computed - tokens
        rows.append((request, start, min(tokens, target - start)))
        (done if computed >= target else partial).append(request_id)
    view.cannot_emit(batch, partial)
    for request_id in done:
        del prefilling[request_id]
    return rows


def _decodes(view: View, batch: Any, prefill: Sequence[Prefill]) -> Sequence[Any]:
    """A member is a running request, once: as many members as running requests are the same."""
    running, scheduled = view.scheduler.running, batch.num_scheduled_tokens
    if len(scheduled) == len(running):
        count = len(running) - len(prefill)
        if not prefill or running[count:] == [row[0] for row in prefill]:
            return running[:count] if prefill else running  # type: ignore[no-any-return]
        inside = {row[0] for row in prefill}
        return [request for request in running if request not in inside]
    inside = {row[0].request_id for row in prefill}
    return [r for r in running if (i := r.request_id) in scheduled and i not in inside]


def _drafts(batch: Any, found: Split) -> list[tuple[Any, int]]:
    """Also of prompts that end in this batch with drafts after them, counted as after one token."""
    scheduled = batch.num_scheduled_tokens
    padded = [(r, 1 + scheduled[r.request_id] - n) for r, _, n in found.prefill]
    out = [(r, n) for r in found.decodes if (n := scheduled[r.request_id]) != 1]
    return out + [(r, n) for r, n in padded if n != 1]


def _draft_tokens(batch: Any, surplus: int) -> int:
    drafts = batch.scheduled_spec_decode_tokens
    return sum(map(len, drafts.values())) if drafts else surplus


def pool(view: View) -> Pool:
    """(total, used, evictable) blocks. One block is vLLM's own and never given out.

    What can be evicted is the cache's map without what running requests hold in full blocks. vLLM
    doesn't count it: blocks of equal content and last blocks that are full make it an estimate.
    """
    blocks, running = view.blocks, len(view.scheduler.running)
    total, free = blocks.num_gpu_blocks - 1, blocks.get_num_free_blocks()
    used = total - free
    cached = blocks.cached_block_hash_to_block
    found = len(getattr(cached, "_cache", cached))  # its own __len__ is Python
    if used > running:
        found -= used - running
    if found < 0:  # no min() or max(): looking these up costs 3 us in the cold caches of an engine
        return total, used, 0
    return total, used, found if found < free else free  # noqa: FURB136


def emissions(view: View, result: Any, batch: Any) -> Sequence[tuple[Any, int]]:
    """(member, tokens) of each that did not emit exactly one token.

    A chunk that ends inside its prompt never emits. With as many silent members as such chunks
    those are they; only otherwise all are compared.
    """
    scheduled, shape = batch.num_scheduled_tokens, view.shape
    if shape.one_output:
        out = result.outputs
    elif len(result) == 1:  # the outputs of the only client, without a call
        (group,) = result.values()
        out = group.outputs
    else:
        out = [out for group in result.values() for out in group.outputs]
    partial = view.partial.pop(id(batch), ()) if view.partial else ()
    plain = shape.plain and not view.errors and not batch.scheduled_spec_decode_tokens
    if plain and len(out) + len(partial) == len(scheduled):
        return [(Gone(request_id), 0) for request_id in partial] if partial else ()
    tokens: dict[str, int] = {}
    for one in out:
        tokens[one.request_id] = tokens.get(one.request_id, 0) + len(one.new_token_ids)
    past = view.past
    silent = [(i, n) for i in scheduled if (n := tokens.get(i, 0)) != 1]
    return [(past.get(i) or Gone(i), n) for i, n in silent]


def launched(stats: Any) -> tuple[int, int]:
    """(padded tokens, graph mode) by its CUDAGraphStat, which vLLM makes where told to."""
    mode = str(stats.runtime_mode).rpartition(".")[2]
    return stats.num_padded_tokens, GRAPH_MODE.get(mode, 0)
