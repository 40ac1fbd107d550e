# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Drives the real Scheduler of the vLLM on the path, without a model, and counts by itself.

    PYTHONPATH=.cache/vllm/0.16.0 .venvs/vllm/bin/python -m tests.engines.scheduler_process \\
        FOLDER [NAME ...]

Every scenario gets a ring of its own in FOLDER/NAME. Prints one JSON object: name -> what the
driver counted from SchedulerOutput and EngineCoreOutput, or why this version can't be brought
there.
"""

import inspect
import json
import os
import random
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ["VLLM_PLUGINS"] = ""

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from batchscope.adapters import vllm as ours

BLOCK = 16
STOP_TOKEN = 9
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


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
    folder = Path(tempfile.mkdtemp(prefix="batchscope-model-"))
    (folder / "config.json").write_text(json.dumps(MODEL))
    return str(folder)


MODEL_FOLDER = model_folder()


def scheduler(*, asynchronous=False, blocks=100, cached=True, **settings):
    """A real scheduler; `settings` are those of SchedulerConfig."""
    tokens = settings.setdefault("max_num_batched_tokens", 256)
    settings.setdefault("max_num_seqs", 16)
    settings.setdefault("enable_chunked_prefill", True)
    missing = {"watermark", "prefill_schedule_interval"} & set(settings)
    missing -= set(inspect.signature(SchedulerConfig).parameters)
    if missing:
        raise NotHereError(f"no setting {missing.pop()}")
    length = 512 if settings["enable_chunked_prefill"] else min(512, tokens)
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
        scheduler_config=sched, model_config=model, cache_config=cache, **device_config()
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


def request(name, prompt, max_tokens, *, first=0, **fields):
    """A real Request of `prompt` tokens; equal `first` means an equal prefix."""
    return called(
        Request,
        request_id=name,
        prompt_token_ids=[(first * 7 + j) % 900 + 10 for j in range(prompt)],
        sampling_params=SamplingParams(
            ignore_eos=True, max_tokens=max_tokens, stop_token_ids=[STOP_TOKEN]
        ),
        pooling_params=None,
        block_hasher=HASHER,
        eos_token_id=2,
        arrival_time=1_700_000_000.0,
        multi_modal_inputs=None,
        multi_modal_hashes=None,
        multi_modal_placeholders=None,
        multi_modal_kwargs=None,
        multi_modal_kwargs_hashes=None,
        mm_features=None,
        **fields,
    )


class Driver:
    """Steps a scheduler as the engine core does and counts what its own outputs say."""

    def __init__(self, sched, *, in_flight=0, stop_every=0):
        self.sched, self.in_flight, self.stop_every = sched, in_flight, stop_every
        self.queue = deque()
        self.counted = Counter()
        self.ends = Counter()
        self.targets, self.lengths, self.computed = {}, {}, {}
        self.lost = set()
        self.waiting_seen = []

    def add(self, new):
        self.sched.add_request(new)
        self.lengths[new.request_id] = new.num_tokens
        self.counted["arrived"] += 1
        return new

    def abort(self, name):
        if name in self.sched.requests:
            self.sched.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self.ends["abort"] += 1

    def step(self, *args):
        """Schedule, and update with the oldest batch once enough are in flight."""
        before = {i for i, r in self.sched.requests.items() if r.status.name == "PREEMPTED"}
        batch = self.sched.schedule(*args)
        self.queue.append((batch, self.count(batch, before)))
        if len(self.queue) > self.in_flight:
            self.update(*self.queue.popleft())
        return batch

    def count(self, batch, before):
        """Members by phase from the output alone; who emits."""
        starts = {new.req_id: new.num_computed_tokens for new in batch.scheduled_new_reqs}
        for name in starts:
            self.targets[name] = self.lengths[name]
        starts |= dict(self.cached(batch))
        self.preempted(before)
        emits = []
        for name, tokens in batch.num_scheduled_tokens.items():
            inside = max(0, min(tokens, self.targets[name] - starts[name]))
            self.counted["prefill"] += inside
            self.counted["decode"] += tokens - inside
            if starts[name] + tokens >= self.targets[name]:
                emits.append(name)
        self.counted["iterations"] += bool(batch.num_scheduled_tokens)
        self.counted["members"] += len(batch.num_scheduled_tokens)
        self.counted["draft"] += sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        return emits

    def cached(self, batch):
        """(name, tokens computed before) of members that were known; resumed ones get a target."""
        known = batch.scheduled_cached_reqs
        if isinstance(known, list):
            rows = [(k.req_id, k.num_computed_tokens, k.resumed_from_preemption) for k in known]
        else:
            back = getattr(known, "resumed_req_ids", None)
            if back is None:
                flags = zip(known.req_ids, known.resumed_from_preemption, strict=True)
                back = {name for name, resumed in flags if resumed}
            rows = [
                (name, done, name in back)
                for name, done in zip(known.req_ids, known.num_computed_tokens, strict=True)
            ]
        for name, _, resumed in rows:
            if resumed:
                self.targets[name] = self.lengths[name]
        return [(name, done) for name, done, _ in rows]

    def preempted(self, before):
        now = {i for i, r in self.sched.requests.items() if r.status.name == "PREEMPTED"}
        self.counted["preempted"] += len(now - before)

    def update(self, batch, emits):
        names = list(batch.num_scheduled_tokens)
        tokens = [[self.token(name)] if name in emits else [] for name in names]
        if vllm.__version__.startswith("0.11"):
            import numpy as np

            tokens = [np.array(one, dtype=np.int64) for one in tokens]
        output = called(
            ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=tokens,
            spec_token_ids=None,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            num_nans_in_logits=None,
        )
        self.take(self.sched.update_from_output(batch, output))

    def token(self, name):
        self.counted["sampled"] += 1
        return (
            STOP_TOKEN if self.stop_every and self.counted["sampled"] % self.stop_every == 0 else 7
        )

    def take(self, result):
        groups = result.values() if isinstance(result, dict) else [result]
        for out in (out for group in groups for out in group.outputs):
            self.counted["output"] += len(out.new_token_ids)
            self.lengths[out.request_id] += len(out.new_token_ids)
            if out.finish_reason is not None:
                self.ends[str(out.finish_reason)] += 1

    def drain(self, most=3000):
        for _ in range(most):
            if not (self.sched.has_requests() or self.queue):
                return
            self.step()
        raise AssertionError(f"never ends: {self.counted}")

    def result(self):
        return {"counted": dict(self.counted), "ends": dict(self.ends)}


def load(driver, *, requests=40):
    """Bursts of mixed lengths with shared prefixes, aborts, a pool that is too small for all."""
    rng = random.Random(5)
    sent = steps = 0
    while sent < requests:
        for _ in range(rng.choice((0, 3, 5)) if sent < requests else 0):
            first = rng.choice((1, 2, 100 + sent))
            driver.add(
                request(f"r{sent}", rng.randrange(4, 200), rng.randrange(2, 90), first=first)
            )
            sent += 1
        for _ in range(8):
            driver.step()
        steps += 1
        if steps % 3 == 0 and driver.sched.running:
            driver.abort(driver.sched.running[-1].request_id)
        if steps % 4 == 0 and driver.sched.waiting:
            driver.abort(next(iter(driver.sched.waiting)).request_id)
    driver.drain()


def watched(sched, folder):
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
    handle = ours.attach(sched, {**env, "BATCHSCOPE_RING_BYTES": str(16 << 20)})
    assert handle.attached, "not attached"
    return handle


def workload(folder, **settings):
    in_flight = int(settings.get("asynchronous", False))
    sched = scheduler(blocks=40, max_num_seqs=8, max_num_batched_tokens=128, **settings)
    handle = watched(sched, folder)
    driver = Driver(sched, in_flight=in_flight, stop_every=97)
    load(driver)
    total = sched.kv_cache_manager.block_pool.num_gpu_blocks - 1
    result = {**driver.result(), "faults": handle.faults.count, "blocks": total}
    handle.detach()
    return result


def idle(folder, *, loads, steps=4, prepare=None, each=None, args=(), **settings):
    """A scheduler with these requests, a few steps; the stop is looked for in the ring."""
    sched = scheduler(**settings)
    if prepare:
        prepare(sched)
    handle = watched(sched, folder)
    driver = Driver(sched)
    for new in loads:
        driver.add(new)
    for step in range(steps):
        if each:
            each(driver, step)
        driver.step(*args)
    result = {**driver.result(), "faults": handle.faults.count}
    handle.detach()
    return result


def many(count, prompt, max_tokens=20):
    return [request(f"r{i}", prompt, max_tokens, first=i) for i in range(count)]


def token_budget(folder):
    return idle(folder, loads=many(10, 100), max_num_batched_tokens=256, max_num_seqs=64)


def max_requests(folder):
    return idle(folder, loads=many(9, 30), max_num_seqs=4)


def kv_blocks(folder):
    return idle(folder, loads=many(8, 200), blocks=30, max_num_batched_tokens=2048)


def kv_watermark(folder):
    return idle(folder, loads=many(3, 64), blocks=20, watermark=0.6, max_num_batched_tokens=2048)


def preemption(folder):
    loads = many(6, 60, 60)
    return idle(folder, loads=loads, blocks=26, steps=40, max_num_batched_tokens=2048)


def paused(folder):
    from vllm.v1.core.sched.interface import PauseState

    def pause(driver, step):
        if step == 1:
            driver.add(request("late", 20, 4, first=50))
            driver.sched.set_pause_state(PauseState.PAUSED_NEW)

    return idle(folder, loads=many(2, 30), each=pause)


def prefill_throttle(folder):
    if not hasattr(Scheduler, "schedule") or "throttle_prefills" not in str(
        inspect.signature(Scheduler.schedule)
    ):
        raise NotHereError("schedule() takes no throttle_prefills")

    def late(driver, step):
        if step == 2:
            driver.add(request("late", 40, 4, first=50))

    return idle(folder, loads=many(2, 30), each=late, args=(True,))


def chunk_policy(folder):
    return idle(
        folder,
        loads=many(3, 100),
        enable_chunked_prefill=False,
        max_num_batched_tokens=256,
        cached=False,
    )


def lora(folder):
    def one_slot(sched):
        sched.lora_config = SimpleNamespace(max_loras=1)

    adapters = [LoRARequest(f"lora{i}", i + 1, "/nowhere") for i in range(2)]
    loads = [request(f"r{i}", 30, 6, first=i, lora_request=adapters[i % 2]) for i in range(4)]
    return idle(folder, loads=loads, steps=14, prepare=one_slot)


def grammar(folder):
    waits = getattr(RequestStatus, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", None)
    waits = waits or RequestStatus.WAITING_FOR_FSM
    asked = SimpleNamespace(grammar=None)

    def compiles(driver, step):
        held = driver.sched.requests["held"]
        if step == 3:
            asked.grammar = True
        if held.status.name == "RUNNING":
            held.structured_output_request = None

    held = request("held", 20, 4, first=60)
    held.status, held.structured_output_request = waits, asked
    return idle_with_release(folder, [*many(1, 30), held, *many(3, 30)[1:]], compiles, held)


def idle_with_release(folder, loads, each, held):
    """As idle; the grammar goes away between the decision that admits and its output."""
    sched = scheduler()
    handle = watched(sched, folder)
    driver = Driver(sched)
    for new in loads:
        driver.add(new)
    for step in range(6):
        each(driver, step)
        batch = driver.sched.schedule()
        each(driver, -1)
        driver.update(batch, driver.count(batch, set()))
    result = {**driver.result(), "faults": handle.faults.count}
    handle.detach()
    return result


class Connector:
    """A KV connector that loads one block of every new request, asynchronously."""

    requires_kv_delivery = False

    def get_num_new_matched_tokens(self, asking, _local):
        return (BLOCK, True) if asking.request_id == "remote" else (0, False)

    def get_loaded_kv_cache_group_ids(self, _request):
        return ()

    def request_finished(self, *_args):
        return False, None

    request_finished_all_groups = request_finished

    def __getattr__(self, _name):
        return lambda *args, **kwargs: None


def transfer(folder):
    if not hasattr(RequestStatus, "WAITING_FOR_REMOTE_KVS"):
        raise NotHereError("no WAITING_FOR_REMOTE_KVS")

    def connect(sched):
        sched.connector = Connector()

    def arrives(driver, step):
        if step == 4:
            driver.sched.finished_recving_kv_req_ids.add("remote")

    loads = [*many(1, 30), request("remote", 40, 4, first=70), request("r9", 30, 20, first=9)]
    return idle(folder, loads=loads, steps=6, prepare=connect, each=arrives)


def priority(folder):
    loads = [request(f"r{i}", 60, 60, first=i, priority=i % 3) for i in range(8)]
    return idle(folder, loads=loads, blocks=26, steps=30, policy="priority", max_num_seqs=4)


def cached_prefix(folder):
    def same(driver, step):
        if step == 3:
            driver.add(request("again", 80, 4, first=1))

    return idle(folder, loads=[request("first", 80, 4, first=1)], each=same, steps=8)


SCENARIOS = {
    "workload": workload,
    "workload_async": lambda folder: workload(folder, asynchronous=True),
    **{
        scenario.__name__: scenario
        for scenario in (
            token_budget,
            max_requests,
            kv_blocks,
            kv_watermark,
            preemption,
            paused,
            prefill_throttle,
            chunk_policy,
            lora,
            grammar,
            transfer,
            priority,
            cached_prefix,
        )
    },
}


def run(scenario, folder):
    try:
        return scenario(folder)
    except NotHereError as why:
        return {"not_here": str(why)}


def main(folder, *names):
    """Run them all, each with a ring of its own."""
    said = {name: run(SCENARIOS[name], Path(folder) / name) for name in names or SCENARIOS}
    print(json.dumps({"version": vllm.__version__, "scenarios": said}))


if __name__ == "__main__":
    main(*sys.argv[1:])
