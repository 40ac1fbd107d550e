"""Engine flags as data: which flag answers which reason, since when, and what it costs.

A finding names a knob only if the engine's version has it. `since` and `until` are versions in
which the flag was seen, of those that were looked at; all these flags need a restart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from batchscope.schemas.reasons import DeferralReason as Reason


@dataclass(frozen=True)
class Knob:
    """One flag turned one way.

    `setting` is where HELLO's config has its value; `until` the last version with the flag, None
    while it is there; `default` as the engine documents it, "" where it depends on the device.
    """

    engine: str
    flag: str
    turn: str
    reasons: tuple[Reason, ...]
    setting: str
    since: str
    side_effect: str
    until: str | None = None
    default: str = ""

    def exists_in(self, version: str) -> bool:
        """Whether that version has the flag; False for a version without numbers."""
        wanted = numbers(version)
        if not wanted or wanted < numbers(self.since):
            return False
        return self.until is None or wanted <= numbers(self.until)


def numbers(version: str) -> tuple[int, ...]:
    """(0, 32, 0) of "0.32.0+cpu"; empty for a version that doesn't begin with a number."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def knobs_for(engine: str, version: str, reason: Reason) -> tuple[Knob, ...]:
    """What can be turned against that reason, the most direct first."""
    fitting = (k for k in KNOBS if k.engine == engine and reason in k.reasons)
    return tuple(knob for knob in fitting if knob.exists_in(version))


_MEMORY = (Reason.KV_BLOCKS, Reason.KV_WATERMARK, Reason.PREEMPTION)

# fmt: off
KNOBS: tuple[Knob, ...] = (
    # the budget of one iteration
    Knob("vllm", "--max-num-batched-tokens", "raise", (Reason.TOKEN_BUDGET, Reason.CHUNK_POLICY),
         "scheduler_config.max_num_batched_tokens", "0.8.5",
         "prompts start sooner; time between tokens grows with the budget"),
    Knob("vllm", "--max-num-scheduled-tokens", "raise", (Reason.TOKEN_BUDGET,),
         "scheduler_config.max_num_scheduled_tokens", "0.27.0",
         "as --max-num-batched-tokens, up to which it goes", default="max_num_batched_tokens"),
    Knob("vllm", "--long-prefill-token-threshold", "lower", (Reason.TOKEN_BUDGET,),
         "scheduler_config.long_prefill_token_threshold", "0.8.5",
         "long prompts take more iterations, short ones do not wait behind", default="0: no cap"),
    Knob("vllm", "--enable-chunked-prefill", "on", (Reason.CHUNK_POLICY,),
         "scheduler_config.enable_chunked_prefill", "0.8.5",
         "prompts share iterations with decodes, which lengthens the time between tokens"),
    # slots
    Knob("vllm", "--max-num-seqs", "raise", (Reason.MAX_REQUESTS,),
         "scheduler_config.max_num_seqs", "0.8.5",
         "more tokens per iteration, each a little later; with a full KV pool, preemptions"),
    Knob("vllm", "--max-num-active-seqs", "raise", (Reason.MAX_REQUESTS,),
         "scheduler_config.max_num_active_seqs", "0.31.0",
         "as --max-num-seqs, up to which it goes", default="max_num_seqs"),
    # KV memory
    Knob("vllm", "--gpu-memory-utilization", "raise", _MEMORY,
         "cache_config.gpu_memory_utilization", "0.8.5",
         "less room for what else uses the device: out of memory at start or under load"),
    Knob("vllm", "--kv-cache-memory-bytes", "raise", _MEMORY,
         "cache_config.kv_cache_memory_bytes", "0.10.2",
         "the same in bytes, without the safety of a share", default="unset"),
    Knob("vllm", "--kv-cache-dtype", "fp8", _MEMORY,
         "cache_config.cache_dtype", "0.8.5",
         "twice the tokens in the same memory, at some loss of precision", default="auto"),
    Knob("vllm", "--tensor-parallel-size", "raise", _MEMORY,
         "parallel_config.tensor_parallel_size", "0.8.5",
         "weights are split, more is left for KV; every layer communicates", default="1"),
    Knob("vllm", "--max-num-seqs", "lower", (Reason.PREEMPTION,),
         "scheduler_config.max_num_seqs", "0.8.5",
         "requests wait in the queue and are not thrown out and computed twice"),
    Knob("vllm", "--watermark", "raise", (Reason.PREEMPTION,),
         "scheduler_config.watermark", "0.27.0",
         "a share of the pool is kept from new requests: they start later", default="0.0"),
    Knob("vllm", "--watermark", "lower", (Reason.KV_WATERMARK,),
         "scheduler_config.watermark", "0.27.0",
         "starts sooner, preempts more", default="0.0"),
    Knob("vllm", "--no-scheduler-reserve-full-isl", "on", (Reason.KV_BLOCKS,),
         "scheduler_config.scheduler_reserve_full_isl", "0.19.1",
         "admitted when the first chunk fits: sooner, and preempted more often", default="off"),
    # others
    Knob("vllm", "--prefill-schedule-interval", "lower", (Reason.PREFILL_THROTTLE,),
         "scheduler_config.prefill_schedule_interval", "0.27.0",
         "prompts start sooner and disturb decodes more often"),
    Knob("vllm", "--max-loras", "raise", (Reason.LORA,),
         "lora_config.max_loras", "0.8.5",
         "memory for one more adapter each, less for KV", default="1"),
    Knob("vllm", "--scheduling-policy", "priority", (Reason.MAX_REQUESTS, Reason.KV_BLOCKS),
         "scheduler_config.policy", "0.8.5",
         "who waits changes, not how many; the lowest are preempted first", default="fcfs"),
)
# fmt: on
