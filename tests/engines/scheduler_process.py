# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Scenarios on the real Scheduler of the vLLM on the path; each has a ring of its own.

    PYTHONPATH=.cache/vllm/0.16.0 .venvs/vllm/bin/python -m tests.engines.scheduler_process \\
        FOLDER [NAME ...]

Prints one JSON object: name -> what the driver counted from SchedulerOutput and EngineCoreOutput,
or why this version can't be brought there. The ring is in FOLDER/NAME.
"""

import inspect
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import vllm
from tests.engines import kv_scenarios, rank_scenarios, session_scenarios, state_scenarios
from tests.engines.vllm_driver import Driver, load, watched
from tests.engines.vllm_parts import NotHereError, held, request, scheduler
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.scheduler import Scheduler

from batchscope.adapters.vllm import batches
from batchscope.schemas.ring import set_level


def workload(folder, *, drafts=0, pools=False, second_runner=False, in_flight=0, **settings):
    """The whole load, from first to last."""
    sched = scheduler(blocks=40, max_num_seqs=8, max_num_batched_tokens=128, **settings)
    if drafts:
        sched.num_spec_tokens = sched.num_lookahead_tokens = drafts
    if pools:
        pool_instead(sched.vllm_config.model_config)
    if second_runner:
        run_second(sched)
    handle = watched(sched, folder)
    driver = Driver(
        sched,
        in_flight=in_flight,
        stop_every=0 if pools else 97,
        drafts=drafts,
        pools=pools,
    )
    errors = []
    load(driver, each=lambda: errors.append(evictable_error(sched, handle)))
    total = sched.kv_cache_manager.block_pool.num_gpu_blocks - 1
    more = {"faults": handle.faults.count, "blocks": total, "evictable_error": max(errors)}
    handle.detach()
    return {**driver.result(), **more}


def run_second(sched):
    """Under the second model runner resumed requests are listed among the new ones."""
    if not hasattr(sched, "use_v2_model_runner"):
        raise NotHereError("one model runner only")
    sched.use_v2_model_runner = True


def pool_instead(model_config):
    if isinstance(getattr(type(model_config), "runner_type", None), property):
        raise NotHereError("pools no requests yet")
    model_config.runner_type = "pooling"


def evictable_error(sched, handle):
    """Our estimate against a look at every block."""
    pool = sched.kv_cache_manager.block_pool
    cached = [b for b in pool.blocks if b.block_hash is not None and not b.ref_cnt]
    return abs(batches.pool(handle.subject)[2] - len(cached))


def woken(folder, **settings):
    """The same load; the control word wakes us in the middle of it, and the counting begins."""
    sched = scheduler(blocks=40, max_num_seqs=8, max_num_batched_tokens=128, **settings)
    handle = watched(sched, folder, active=False)
    driver = Driver(sched, in_flight=int(settings.get("asynchronous", False)), stop_every=97)
    steps = []

    def wake():
        steps.append(handle.recorder is not None)
        if len(steps) == 40:
            set_level(folder, handle.ring_uuid, 2)
        if not steps[-1]:
            driver.counted, driver.ends = Counter(sampled=driver.counted["sampled"]), Counter()

    load(driver, before=wake)
    result = {**driver.result(), "faults": handle.faults.count, "slept": steps.count(False)}
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
    try:
        from vllm.v1.core.sched.interface import PauseState
    except ImportError as why:
        raise NotHereError("no PauseState") from why

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
    if "chunked_prefill" not in inspect.getsource(Scheduler.schedule):
        raise NotHereError("always chunks")
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
    asked = SimpleNamespace(grammar=None)

    def compiles(driver, step):
        waiter = driver.sched.requests["held"]
        if step == 3:
            asked.grammar = True
        if waiter.status.name == "RUNNING":
            waiter.structured_output_request = None

    return idle_with_release(folder, [*many(1, 30), held(asked), *many(3, 30)[1:]], compiles)


def idle_with_release(folder, loads, each):
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


def reset(folder):
    """The prefix cache is reset under running requests: a preemption without a full pool."""

    def forget(driver, step):
        if step == 3:
            before = set()
            driver.sched.reset_prefix_cache(reset_running_requests=True)
            driver.preempted(before)

    if "reset_running_requests" not in inspect.signature(Scheduler.reset_prefix_cache).parameters:
        raise NotHereError("reset_prefix_cache() takes no reset_running_requests")
    return idle(folder, loads=many(3, 60), each=forget, steps=6)


def priority(folder):
    loads = [request(f"r{i}", 60, 60, first=i, priority=i % 3) for i in range(8)]
    return idle(folder, loads=loads, blocks=26, steps=30, policy="priority")


def cached_prefix(folder):
    def same(driver, step):
        if step == 3:
            driver.add(request("again", 80, 4, first=1))

    return idle(folder, loads=[request("first", 80, 4, first=1)], each=same, steps=8)


SCENARIOS = {
    **kv_scenarios.SCENARIOS,
    **rank_scenarios.SCENARIOS,
    **session_scenarios.SCENARIOS,
    **state_scenarios.SCENARIOS,
    "workload": workload,
    "workload_async": lambda folder: workload(folder, asynchronous=True, in_flight=1),
    "workload_pipeline": lambda folder: workload(folder, in_flight=1),
    "workload_second_runner": lambda folder: workload(folder, second_runner=True),
    "workload_drafts": lambda folder: workload(folder, drafts=3),
    "workload_pooling": lambda folder: workload(folder, pools=True),
    "woken": woken,
    "woken_async": lambda folder: woken(folder, asynchronous=True),
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
            reset,
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
