"""Why the scheduler admitted no more, told from the state that schedule() left behind. Pure reads.

A scan over the waiting requests ends in one of few ways, and all but a failed allocation show in
what is left: budget used up, slots full, paused, a preemption. Nothing is allocated after a failed
allocation, so the pool is as it was then. The queue is not looped over: its front is, up to the
request where the scan stopped, and at most 64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from batchscope.adapters.facts import Row
from batchscope.adapters.vllm.view import RESTS, View
from batchscope.schemas import reasons
from batchscope.schemas.reasons import DeferralReason, Position

MOST_LOOKED_AT = 64

_CODES = reasons.codes(DeferralReason)
_AT = reasons.codes(Position)
_GLOBAL, _HEAD = _AT[Position.GLOBAL], _AT[Position.HEAD]
_BEHIND, _SKIPPED = _AT[Position.BEHIND], _AT[Position.SKIPPED]
BUDGET, SLOTS = _CODES[DeferralReason.TOKEN_BUDGET], _CODES[DeferralReason.MAX_REQUESTS]
BLOCKS, WATERMARK = _CODES[DeferralReason.KV_BLOCKS], _CODES[DeferralReason.KV_WATERMARK]
PREEMPTION, PAUSED = _CODES[DeferralReason.PREEMPTION], _CODES[DeferralReason.PAUSED]
THROTTLE, CHUNKS = _CODES[DeferralReason.PREFILL_THROTTLE], _CODES[DeferralReason.CHUNK_POLICY]
LORA, GRAMMAR = _CODES[DeferralReason.LORA], _CODES[DeferralReason.GRAMMAR]
TRANSFER, PREFETCH = _CODES[DeferralReason.TRANSFER], _CODES[DeferralReason.CACHE_PREFETCH]
POLICY, UNKNOWN = _CODES[DeferralReason.POLICY], _CODES[DeferralReason.UNKNOWN]

BLOCKED_STATUS = {
    "WAITING_FOR_FSM": GRAMMAR,
    "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR": GRAMMAR,
    "WAITING_FOR_REMOTE_KVS": TRANSFER,
    RESTS: POLICY,
}
"""Statuses in which a request can't be admitted; the last is no request at the moment."""
_ENDS_UNSEEN = frozenset({GRAMMAR, TRANSFER})
"""Reasons that end with a change of status, while vLLM's mark stays until admission."""

Edge = tuple[Any, int, bool]
"""(request, reason, whether the skipping begins)."""


def skipped(view: View) -> Sequence[Edge]:
    """Edges since the last decision; `view.passed` is brought up to date."""
    passed_over, passed = view.shape.passed_over, view.passed
    marked = getattr(view.scheduler, passed_over) if passed_over else _front(view)
    if not marked and not passed:
        return ()
    edges: list[Edge] = []
    now = {request.request_id: request for request in marked}
    for request_id in [known for known in passed if known not in now]:
        _end(view, request_id, passed.pop(request_id), edges)
    for request_id, request in now.items():
        _follow(view, request_id, request, edges)
    return edges


def _front(view: View) -> Sequence[Any]:
    """Up to 0.16 skipped requests bear no mark: they are put back in front of the others."""
    front = view.scheduler.waiting
    if not front or not _can_skip(view, _peek(front)):
        return ()
    loras = running_loras(view)
    found = []
    for request in islice(front, MOST_LOOKED_AT):
        if not blocked_by(view, request, loras):
            break
        found.append(request)
    return found


def _peek(queue: Any) -> Any:
    return queue.peek_request() if hasattr(queue, "peek_request") else queue[0]


def _can_skip(view: View, request: Any) -> bool:
    return request.status.name in BLOCKED_STATUS or bool(
        view.shape.lora_slots and request.lora_request
    )


def running_loras(view: View) -> frozenset[int]:
    """Adapters that this batch holds; empty where the engine has none."""
    if not view.shape.lora_slots:
        return frozenset()
    held = (r.lora_request for r in view.scheduler.running if r.lora_request)
    return frozenset(lora.lora_int_id for lora in held)


def blocked_by(view: View, request: Any, loras: frozenset[int]) -> int:
    """Reason code that keeps this request from being looked at further, 0 for none."""
    code = BLOCKED_STATUS.get(request.status.name, 0)
    if code or not view.shape.lora_slots:
        return code
    lora = getattr(request, "lora_request", None)
    full = len(loras) >= view.shape.lora_slots
    return LORA if lora and full and lora.lora_int_id not in loras else 0


def _follow(view: View, request_id: str, request: Any, edges: list[Edge]) -> None:
    """One marked request: newly so, still so, or marked though its reason has ended."""
    known = view.passed.get(request_id)
    if request.status.name == RESTS:
        view.passed[request_id] = 0  # and the mark may stay after that
    elif known is None:
        code = _why(view, request)
        view.passed[request_id] = code
        edges.append((request, code, True))
    elif known in _ENDS_UNSEEN and request.status.name not in BLOCKED_STATUS:
        view.passed[request_id] = 0
        edges.append((request, known, False))


def _end(view: View, request_id: str, code: int, edges: list[Edge]) -> None:
    request = view.scheduler.requests.get(request_id)
    if code and request is not None:
        edges.append((request, code, False))


def _why(view: View, request: Any) -> int:
    """Reason of a mark. Without a telling status it is the first that this engine can have."""
    scheduler = view.scheduler
    code = BLOCKED_STATUS.get(request.status.name, 0)
    if code:
        return code
    if getattr(request, "num_stale_output_tokens", 0):
        return POLICY
    if view.shape.lora_slots and request.lora_request:
        return LORA
    if getattr(scheduler, "ec_connector", None) is not None and request.mm_features:
        return TRANSFER
    return PREFETCH if getattr(scheduler, "connector", None) is not None else UNKNOWN


def left_out(view: View, batch: Any, waiting: int) -> tuple[int, Any, Sequence[Row]]:
    """(admission stop, where the scan stopped, who was left out) of `waiting` requests."""
    passed = view.passed
    unskipped = waiting - sum(map(bool, passed.values())) if passed else waiting
    code, head = stop(view, batch, unskipped)
    return code, head, rows(view, code, unskipped)


def stop(view: View, batch: Any, unskipped: int) -> tuple[int, Any]:
    """(reason code, the request where the scan stopped); (0, None) when nobody was left."""
    if unskipped <= 0:
        return 0, None
    scheduler, shape = view.scheduler, view.shape
    if view.preempted:
        return PREEMPTION, None
    if shape.pauses and scheduler._pause_state.name != "UNPAUSED":
        return PAUSED, None
    left = scheduler.max_num_scheduled_tokens - batch.total_num_scheduled_tokens
    if left <= 0 or _inputs_used_up(view, batch):
        return BUDGET, None
    held = len(scheduler.running)
    if shape.counts_streaming:
        held += scheduler.num_waiting_for_streaming_input
    if held >= getattr(scheduler, shape.limit):
        return SLOTS, None
    head = _head(view)
    return (0, None) if head is None else (_of_head(view, head, left), head)


def _inputs_used_up(view: View, batch: Any) -> bool:
    slots = view.shape.draft_slots
    if not slots:
        return False
    used = batch.total_num_scheduled_tokens + slots * len(batch.num_scheduled_tokens)
    return bool(view.shape.input_tokens - used <= slots)


def _head(view: View) -> Any:
    """The first request, in the scan's order, that was not passed over."""
    loras = running_loras(view)
    passed = view.passed
    for request in islice(_in_order(view), MOST_LOOKED_AT):
        known = passed.get(request.request_id, 0)
        if not known and not blocked_by(view, request, loras):
            return request
    return None


def _in_order(view: View) -> Iterator[Any]:
    scheduler, shape = view.scheduler, view.shape
    if not shape.holding:
        return iter(scheduler.waiting)
    return chain(getattr(scheduler, shape.holding), scheduler.waiting)


def _of_head(view: View, head: Any, left: int) -> int:
    """Why the head could not be admitted, `left` tokens of the budget remaining."""
    shape = view.shape
    # it becomes whether anybody was left, unless prefills were held back: then it stays False
    if view.held_back and not view.scheduler.prefill_capacity_bound:
        return THROTTLE
    fits = _blocks(view, head) <= _free(view)
    if not shape.chunks and head.num_tokens - head.num_computed_tokens > left:
        if fits:
            return CHUNKS
        return UNKNOWN if shape.caches else CHUNKS
    if shape.ambiguous or getattr(head, "has_encoder_inputs", False):
        return UNKNOWN
    return WATERMARK if fits and shape.watermark_blocks else BLOCKS


def _free(view: View) -> int:
    return int(view.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def _blocks(view: View, request: Any) -> int:
    """Blocks for the whole sequence, in every group, without any hit: at most so many."""
    tokens = request.num_tokens + view.shape.spec_tokens
    return int(-(-tokens // view.shape.block_tokens) * view.shape.groups)


def rows(view: View, code: int, unskipped: int) -> list[Row]:
    """(requests, reason, position) of everybody left out."""
    found = Counter(view.passed.values()).items() if view.passed else ()
    out = [(n, why, _SKIPPED) for why, n in found if why]
    if not code:
        return out
    if code in (BUDGET, SLOTS, PREEMPTION, PAUSED):
        return [*out, (unskipped, code, _GLOBAL)]
    out.append((1, code, _HEAD))
    return [*out, (unskipped - 1, code, _BEHIND)] if unskipped > 1 else out
