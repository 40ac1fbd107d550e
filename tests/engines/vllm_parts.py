# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""A real Scheduler, without a model, and real requests, of the vLLM that is on the path."""

import atexit
import inspect
import itertools
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ["VLLM_PLUGINS"] = ""

import torch
from tests.engines.tiny_model import CONFIG
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

ARRIVALS = itertools.count()
BLOCK = 16
STOP_TOKEN = 9


class NotHereError(Exception):
    """This version has no such thing."""


def called(function, **offered):
    """Call with those of the offered arguments that this version takes."""
    taken = set(inspect.signature(function).parameters)
    taken |= set(getattr(function, "__dataclass_fields__", {}))
    return function(**{name: value for name, value in offered.items() if name in taken})


def block_hasher():
    """How this version hashes blocks for its prefix cache; None where requests do it themselves."""
    try:
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    except ImportError:
        return None
    try:
        from vllm.utils.hashing import sha256
    except ImportError:
        from vllm.utils import sha256
    init_none_hash(sha256)
    return get_request_block_hasher(BLOCK, sha256)


HASHER = block_hasher()


def model_folder():
    """A folder with the tiny model's config.json, gone when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="batchscope-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


MODEL_FOLDER = model_folder()


def scheduler(*, asynchronous=False, blocks=100, cached=True, length=512, kv_role=None, **settings):
    """A real scheduler; `settings` are those of SchedulerConfig. With a `kv_role` it has the
    scheduler's half of vLLM's own NIXL connector.
    """
    tokens = settings.setdefault("max_num_batched_tokens", 256)
    settings.setdefault("max_num_seqs", 16)
    settings.setdefault("enable_chunked_prefill", True)
    missing = {"watermark", "prefill_schedule_interval"} & set(settings)
    missing -= set(inspect.signature(SchedulerConfig).parameters)
    if missing:
        raise NotHereError(f"no setting {missing.pop()}")
    length = length if settings["enable_chunked_prefill"] else min(length, tokens)
    sched = called(
        SchedulerConfig,
        max_model_len=length,
        is_encoder_decoder=False,
        async_scheduling=asynchronous,
        **settings,
    )
    model = called(
        ModelConfig,
        model=MODEL_FOLDER,
        task="generate",
        tokenizer=MODEL_FOLDER,
        tokenizer_mode="auto",
        trust_remote_code=False,
        dtype="float32",
        seed=0,
        skip_tokenizer_init=True,
        max_model_len=length,
        served_model_name="tiny",
    )
    cache = called(
        CacheConfig,
        block_size=BLOCK,
        gpu_memory_utilization=0.9,
        swap_space=0,
        cache_dtype="auto",
        enable_prefix_caching=cached,
    )
    config = VllmConfig(
        scheduler_config=sched,
        model_config=model,
        cache_config=cache,
        kv_transfer_config=kv_transfer(kv_role) if kv_role else None,
        **device_config(),
    )
    cache.num_gpu_blocks = blocks
    return called(
        scheduler_class(asynchronous),
        vllm_config=config,
        scheduler_config=sched,
        model_config=model,
        cache_config=cache,
        kv_cache_config=kv_cache(blocks),
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def device_config():
    try:
        from vllm.config import DeviceConfig

        return {"device_config": DeviceConfig("cpu")}
    except ImportError:
        return {}


def kv_transfer(role):
    if not hasattr(RequestStatus, "WAITING_FOR_REMOTE_KVS"):
        raise NotHereError("no WAITING_FOR_REMOTE_KVS")
    return KVTransferConfig(kv_connector="NixlConnector", kv_role=role, engine_id="ours")


def kv_cache(blocks):
    spec = called(
        FullAttentionSpec,
        block_size=BLOCK,
        num_kv_heads=1,
        head_size=1,
        dtype=torch.float32,
        use_mla=False,
    )
    groups = [KVCacheGroupSpec(["layer"], spec)]
    return called(
        KVCacheConfig, num_blocks=blocks, kv_cache_tensors=[], tensors={}, kv_cache_groups=groups
    )


def scheduler_class(asynchronous):
    if not asynchronous:
        return Scheduler
    try:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    except ImportError as why:
        raise NotHereError("no AsyncScheduler") from why

    def build(**taken):  # the subclass hides the signature
        return AsyncScheduler(**taken)

    build.__signature__ = inspect.signature(Scheduler)
    return build


def sampling(max_tokens, extra):
    return SamplingParams(
        ignore_eos=True, max_tokens=max_tokens, stop_token_ids=[STOP_TOKEN], extra_args=extra
    )


def request(name, prompt, max_tokens, *, first=0, extra=None, **fields):
    """A real Request of `prompt` tokens; equal `first` means an equal prefix, `extra` are the
    sampling parameters that vLLM leaves to others. Without `max_tokens` it is a pooling request.
    """
    return called(
        Request,
        request_id=name,
        prompt_token_ids=[(first * 7 + j) % 900 + 10 for j in range(prompt)],
        sampling_params=sampling(max_tokens, extra) if max_tokens else None,
        pooling_params=None if max_tokens else called(PoolingParams, task="embed"),
        block_hasher=HASHER,
        eos_token_id=2,
        arrival_time=1_700_000_000.0 + next(ARRIVALS),
        multi_modal_inputs=None,
        multi_modal_hashes=None,
        multi_modal_placeholders=None,
        multi_modal_kwargs=None,
        multi_modal_kwargs_hashes=None,
        **{"mm_features": None, **fields},
    )


def held(asked):
    """A request that waits until `asked.grammar` is there."""
    waits = getattr(RequestStatus, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", None)
    new = request("held", 20, 4, first=60)
    new.status = waits or RequestStatus.WAITING_FOR_FSM
    new.structured_output_request = asked
    return new
