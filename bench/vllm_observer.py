# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""P1 on the real vLLM scheduler: our hooks against schedule() + update, and against vLLM's stats.

    .venvs/vllm/bin/python -m bench.vllm_observer [ITERATIONS]

Two schedulers without a model, 256 running members each, under the same load: one hooked, one bare,
stepped in turn, so both see the same noise and find cold caches. Beside the clock around the two
calls stands what the hooks count of themselves, ends and arrivals included. vLLM's statistics are
IterationStats over the outputs and PrometheusStatLogger.record, as its API server makes them per
iteration. In microseconds; CPU time of the thread, but the hooks' own count by the wall clock.
"""

import gc
import json
import sys
import tempfile
import time
import timeit
from typing import Any

import vllm.envs
from tests.engines.vllm_driver import Driver
from tests.engines.vllm_parts import request, scheduler
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats

from batchscope.adapters import vllm as ours

MEMBERS, ITERATIONS, WARM_UP = 256, 600, 60
CASES = {
    "steady": {"churn": False, "waiting": 0},
    "queued": {"churn": False, "waiting": 64},
    "changed": {"churn": True, "waiting": 0},
}
BARS = {"share of schedule + update": 0.01, "share of vLLM's statistics": 0.1}


class Timed(Driver):
    """A driver that times the scheduler's two calls; `took` is the CPU time of the last, ns."""

    def step(self, *_: Any) -> None:
        """One iteration; every member emits."""
        began = time.thread_time_ns()
        batch = self.sched.schedule()
        self.took = time.thread_time_ns() - began
        self.update(batch, list(batch.num_scheduled_tokens))

    def answer(self, batch: Any, output: Any) -> Any:
        """The second call."""
        began = time.thread_time_ns()
        result = self.sched.update_from_output(batch, output)
        self.took += time.thread_time_ns() - began
        return result

    def take(self, result: Any) -> None:
        """Nothing to count."""
        self.outcome = result


def measure(
    handle: Any, drivers: tuple[Timed, Timed], *, iterations: int, churn: bool, waiting: int
) -> tuple[list[int], list[int], list[int]]:
    """Time per iteration, ns: (hooked, bare, what the hooks counted), stepped in turn.

    With churn one request ends and one arrives in every iteration; so many wait for a slot.
    """
    watched, bare = drivers
    took: tuple[list[int], list[int], list[int]] = ([], [], [])
    for number in range(MEMBERS + waiting):
        for driver in drivers:
            driver.sched.add_request(new(number, 2 + number if churn else 1500))
    for step in range(iterations + WARM_UP):
        for driver in drivers:
            if churn:
                driver.sched.add_request(new(MEMBERS + step, MEMBERS))
            driver.step()
        if step >= WARM_UP:
            told = (watched.took, bare.took, handle.recorder.observer_ns)
            for values, value in zip(took, told, strict=True):
                values.append(value)
    return took


def new(number: int, tokens: int) -> Any:
    """A request with an id as the API server makes them."""
    return request(f"cmpl-{number:032x}-0-{number:08x}", 64, tokens, first=number)


def quantiles(values: list[int]) -> dict[str, float]:
    """p10, p50, p99 and the largest, in us."""
    ordered = sorted(values)
    at = {"p10": 0.10, "p50": 0.50, "p99": 0.99, "max": 1.0}
    return {name: ordered[int(q * (len(ordered) - 1))] / 1e3 for name, q in at.items()}


def statistics_us(sched: Any, result: Any) -> float:
    """What vLLM itself spends on statistics of such an iteration."""
    outputs = [out for group in result.values() for out in group.outputs]
    states = {out.request_id: RequestStateStats(arrival_time=time.time()) for out in outputs}
    loras = LoRARequestStates(False)
    logger = PrometheusStatLogger(sched.vllm_config, [0])
    scheduler_stats = sched.make_stats()

    def once() -> None:
        stats, now = IterationStats(), time.monotonic()
        for out in outputs:
            stats.update_from_output(out, now, False, states[out.request_id], loras, None)
        logger.record(scheduler_stats, stats, None, 0)

    once()
    return sorted(timeit.repeat(once, number=20, repeat=15))[7] / 20 * 1e6


def case(name: str, iterations: int) -> dict[str, Any]:
    """One case on two schedulers of its own."""
    watched, bare = (Timed(new_scheduler()) for _ in range(2))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": folder, "BATCHSCOPE_OVERHEAD": "0"}
        handle = ours.attach(watched.sched, env)
        gc.collect()
        gc.freeze()
        times = measure(handle, (watched, bare), iterations=iterations, **CASES[name])
        faults = handle.faults.count
        handle.detach()
    stats = statistics_us(bare.sched, bare.outcome)
    hooked, engine, hooks = map(quantiles, times)
    return {
        "hooks": hooks,
        "schedule + update, bare": engine,
        "schedule + update, hooked": hooked,
        "vLLM's statistics": stats,
        "share of schedule + update": hooks["p50"] / engine["p50"],
        "share of vLLM's statistics": hooks["p50"] / stats,
        "faults": faults,
    }


def new_scheduler() -> Any:
    """Room for all members, and blocks for all that they will ever need."""
    return scheduler(max_num_seqs=MEMBERS, max_num_batched_tokens=2048, blocks=30_000, length=2048)


def main(iterations: str = str(ITERATIONS)) -> None:
    """All cases, for a person on stderr and as JSON on stdout."""
    vllm.envs.enable_envs_cache()  # as the engine core does; without it vLLM looks dearer
    cases = {name: case(name, int(iterations)) for name in CASES}
    for name, found in cases.items():
        print(f"{name} {MEMBERS}: {json.dumps(found, indent=1)}", file=sys.stderr)
    print(json.dumps({"unit": "us", "members": MEMBERS, "bars": BARS, "cases": cases}))


if __name__ == "__main__":
    main(*sys.argv[1:])
