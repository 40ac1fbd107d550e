# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""A rank of several: where it has nothing to run, its real EngineCore runs a dummy batch."""

import time
from types import SimpleNamespace

from tests.engines.vllm_driver import Driver, watched
from tests.engines.vllm_parts import held, request, scheduler
from vllm.v1.engine.core import EngineCore


def core_of(sched, ran):
    """A real core without its executor: `ran` gets the instants of each dummy batch."""

    def execute(*_args):
        began = time.monotonic_ns()
        time.sleep(0.001)
        ran.append([began, time.monotonic_ns()])

    core = EngineCore.__new__(EngineCore)
    core.scheduler = sched
    core.model_executor = SimpleNamespace(execute_dummy_batch=execute, collective_rpc=execute)
    return core


def rank_of_two(*, rank):
    sched = scheduler()
    parallel = sched.vllm_config.parallel_config
    parallel.data_parallel_size, parallel.data_parallel_rank = 2, rank
    if hasattr(parallel, "data_parallel_index"):
        parallel.data_parallel_index = rank
    return sched


def dummies(folder):
    """Idle from first to last but for one request, and one whose grammar never comes."""
    sched, ran = rank_of_two(rank=1), []
    handle = watched(sched, folder)
    driver, core = Driver(sched), core_of(sched, ran)
    another = core_of(scheduler(), [])
    for step in range(30):
        if step == 5:
            driver.add(request("only", 20, 8))
        if step == 20:
            driver.add(held(SimpleNamespace(grammar=None)))
        busy = bool(driver.step().num_scheduled_tokens) if sched.has_requests() else False
        if not busy:
            core.execute_dummy_batch()
            another.execute_dummy_batch()
    driver.abort("held")
    handle.detach()
    core.execute_dummy_batch()
    return {**driver.result(), "faults": handle.faults.count, "ran": ran}


SCENARIOS = {"dummies": dummies}
