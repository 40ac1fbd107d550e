"""Which vLLM this is: differences between versions, looked up once at attach and never per call.

Fields of vLLM are renamed often, functions seldom. What every version has is required; where one
of these is missing, nothing is wrapped at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHECKED = ((0, 8, 5), (0, 33, 999))
"""The first and the last version whose real scheduler this adapter was run on."""

METHODS = {
    "schedule": 0,
    "update_from_output": 2,
    "add_request": 1,
    "finish_requests": 2,
    "_free_request": 1,
}
"""Methods of the scheduler that must be there, and how many arguments we rely on."""
FIELDS = (
    "requests",
    "waiting",
    "running",
    "kv_cache_manager",
    "max_num_scheduled_tokens",
    "max_num_running_reqs",
    "scheduler_config",
    "cache_config",
)
PULLS = ("NixlConnector", "NixlPullConnector")
POOL = ("num_gpu_blocks", "get_num_free_blocks", "cached_block_hash_to_block")


class UnsupportedError(Exception):
    """A vLLM that lacks something that the adapter can't do without."""


@dataclass(frozen=True)
class Shape:
    """One vLLM, as far as versions differ.

    `passed_over` names the queue or set of skipped requests ("" up to 0.16: they are put back in
    front, unmarked), `holding` the queue that goes before `waiting`. `ambiguous` says that a scan
    may also stop for reasons that leave no trace (hybrid models, draft padding, look-ahead).
    `sessions` says that the input of a request may come in pieces.
    `hops` says that KV may come from or go to other engines beside the batches, `counts_bytes` that
    the connector counts the bytes of loads and of nothing else, `counts_graphs` that outputs say
    how they were launched, `ranks` how many engines step together.
    """

    version: str
    preempts: str
    passed_over: str
    holding: str
    limit: str
    counts_streaming: bool
    sessions: bool
    throttles: bool
    prefill_interval: int
    pauses: bool
    one_output: bool
    plain: bool
    block_tokens: int
    groups: int
    watermark_blocks: int
    caches: bool
    chunks: bool
    spec_tokens: int
    input_tokens: int
    draft_slots: int
    ambiguous: bool
    lora_slots: int
    random_ids: bool
    hops: bool
    counts_bytes: bool
    counts_graphs: bool
    ranks: int


def shape_of(scheduler: Any) -> Shape:
    """Look at a scheduler that has just been made; UnsupportedError says what it lacks."""
    _require(scheduler)
    config = scheduler.scheduler_config
    kv = scheduler.kv_cache_manager
    spec = int(getattr(scheduler, "num_spec_tokens", 0) or 0)
    skipped = _first(scheduler, "deferred_waiting", "skipped_waiting")
    holding = _first(scheduler, "kv_holding_waiting", "skipped_waiting")
    return Shape(
        version=vllm_version(),
        preempts="_preempt_request" if hasattr(scheduler, "_preempt_request") else "free",
        passed_over=skipped,
        holding=holding,
        limit=_first(scheduler, "max_num_active_reqs", "max_num_running_reqs"),
        counts_streaming=hasattr(scheduler, "prefill_capacity_bound"),
        sessions=hasattr(scheduler, "_handle_stopped_request"),
        throttles=hasattr(scheduler, "prefill_capacity_bound"),
        prefill_interval=int(getattr(scheduler, "local_prefill_interval", 1)),
        pauses=hasattr(scheduler, "_pause_state"),
        one_output=_one_output(type(scheduler)),
        plain=not spec and not _samples_otherwise(scheduler),
        block_tokens=int(getattr(scheduler, "block_size", 0) or scheduler.cache_config.block_size),
        groups=_groups(scheduler),
        watermark_blocks=int(getattr(kv, "watermark_blocks", 0)),
        caches=bool(scheduler.cache_config.enable_prefix_caching),
        chunks=_chunks(config),
        spec_tokens=spec,
        input_tokens=int(config.max_num_batched_tokens),
        draft_slots=_draft_slots(scheduler),
        ambiguous=_ambiguous(scheduler, spec),
        lora_slots=_lora_slots(scheduler),
        random_ids=has_random_ids(),
        hops=_hops(scheduler),
        counts_bytes=_counts_bytes(getattr(scheduler, "connector", None)),
        counts_graphs=_counts_graphs(scheduler),
        ranks=_ranks(scheduler),
    )


def vllm_version() -> str:
    """As vLLM says it, "unknown" where it doesn't."""
    import vllm  # type: ignore[import-not-found]

    return str(getattr(vllm, "__version__", "unknown"))


def is_checked(version: str) -> bool:
    """Whether this version lies between those that the adapter was run on."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if match is None:
        return False
    major, minor, patch = (int(part or 0) for part in match.groups())
    return CHECKED[0] <= (major, minor, patch) <= CHECKED[1]


def _require(scheduler: Any) -> None:
    lacking = [name for name in FIELDS if not hasattr(scheduler, name)]
    lacking += [name for name, n in METHODS.items() if not takes(scheduler, name, n)]
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    lacking += [f"block_pool.{name}" for name in POOL if not hasattr(pool, name)]
    if lacking:
        raise UnsupportedError(f"vLLM {vllm_version()} has no {', '.join(lacking)}: left alone")


def takes(owner: Any, method: str, arguments: int) -> bool:
    """Whether an object has a method that can be called with so many arguments."""
    function = getattr(owner, method, None)
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    return True


def _first(owner: Any, *names: str) -> str:
    return next((name for name in names if hasattr(owner, name)), "")


def _one_output(scheduler: Callable[..., Any]) -> bool:
    """Up to 0.8 the update returns one EngineCoreOutputs, later one per client."""
    returned = str(inspect.signature(scheduler.update_from_output).return_annotation)  # type: ignore[attr-defined]
    return "EngineCoreOutputs" in returned and "dict" not in returned.lower()


def _samples_otherwise(scheduler: Any) -> bool:
    model = getattr(getattr(scheduler, "vllm_config", None), "model_config", None)
    pooling = getattr(model, "runner_type", "generate") == "pooling"
    return bool(pooling or getattr(model, "is_diffusion", False))


def _groups(scheduler: Any) -> int:
    groups = getattr(getattr(scheduler, "kv_cache_config", None), "kv_cache_groups", None)
    return len(groups) if groups else 1


def _chunks(config: Any) -> bool:
    enabled = getattr(config, "enable_chunked_prefill", None)
    return bool(getattr(config, "chunked_prefill_enabled", True) if enabled is None else enabled)


def _draft_slots(scheduler: Any) -> int:
    spec = getattr(getattr(scheduler, "vllm_config", None), "speculative_config", None)
    return int(getattr(spec, "max_num_new_slots_for_drafting", 0) or 0)


def _ambiguous(scheduler: Any, spec_tokens: int) -> bool:
    mamba = getattr(scheduler, "need_mamba_block_aligned_split", False)
    return bool(mamba or spec_tokens or getattr(scheduler, "num_prefill_lookahead", 0))


def _lora_slots(scheduler: Any) -> int:
    lora = getattr(scheduler, "lora_config", None)
    return int(lora.max_loras) if lora else 0


def has_random_ids() -> bool:
    """Since 0.14 the front end appends 8 random digits to the id that the client knows."""
    import vllm.envs as envs  # type: ignore[import-not-found]
    from vllm.v1.engine import EngineCoreRequest  # type: ignore[import-not-found]

    fields = getattr(EngineCoreRequest, "__struct_fields__", ())
    if "external_req_id" not in fields:
        return False
    return not getattr(envs, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False)


def _hops(scheduler: Any) -> bool:
    connected = getattr(scheduler, "connector", None) is not None
    return connected and hasattr(scheduler, "finished_recving_kv_req_ids")


def _counts_bytes(connector: Any) -> bool:
    """Since 0.11 NIXL's connector does, who fetches; another that counts may count sends, too."""
    return type(connector).__name__ in PULLS and hasattr(connector, "build_kv_connector_stats")


def _counts_graphs(scheduler: Any) -> bool:
    observed = getattr(getattr(scheduler, "vllm_config", None), "observability_config", None)
    return bool(getattr(observed, "cudagraph_metrics", False))


def _ranks(scheduler: Any) -> int:
    parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    return int(getattr(parallel, "data_parallel_size", 1))
