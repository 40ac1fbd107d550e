"""The door of the engine: threads, refusals, failures, and steps that are none."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from batchscope.engine.batch import Batch
from batchscope.engine.config import EngineConfig, ModelConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.limits import RequestRejected
from batchscope.engine.sequence import FinishReason, Status

if TYPE_CHECKING:
    from tests.engine.conftest import VirtualClock


@pytest.fixture
def engine(clock: VirtualClock) -> Engine:
    runner = CostRunner(clock=clock, sleep=clock.sleep)
    return Engine(EngineConfig(runner="cost"), runner=runner, clock=clock)


def drain(engine: Engine) -> None:
    for _ in range(10_000):
        if not engine.has_work():
            return
        engine.step()
    raise AssertionError("the engine never came to rest")


def test_a_request_runs_to_its_length_and_its_tokens_arrive_one_by_one(engine: Engine) -> None:
    streamed: list[int] = []
    seq = engine.submit("a", [1, 2, 3], 4, on_token=streamed.append)
    assert [len(engine.step()) for _ in range(4)] == [0, 0, 0, 1]
    assert (seq.status, seq.finish_reason) == (Status.FINISHED, FinishReason.LENGTH)
    assert streamed == seq.output
    assert len(streamed) == 4


def test_instants_are_readings_of_the_engines_clock(engine: Engine, clock: VirtualClock) -> None:
    clock.now_ns = 5_000
    seq = engine.submit("a", [1, 2, 3], 2)
    drain(engine)
    assert seq.arrival_ns == 5_000
    assert seq.first_token_ns == 5_000 + 10_300_000 + 3 * 85
    assert seq.finished_ns == clock.now_ns == seq.first_token_ns + 10_300_000 + 4 * 85


def test_without_work_a_step_decides_nothing(engine: Engine) -> None:
    assert not engine.has_work()
    assert engine.step() == []
    engine.abort("nobody")
    assert engine.step() == []
    assert engine.totals.iterations == 0


def test_a_request_arrives_at_the_next_step_not_at_its_submission(engine: Engine) -> None:
    engine.submit("a", [1], 1)
    assert engine.totals.arrived == 0
    assert engine.has_work()
    engine.step()
    assert engine.totals.arrived == 1


def test_an_abort_sent_right_after_its_request_finds_it(engine: Engine) -> None:
    seq = engine.submit("a", [1], 5)
    engine.abort("a")
    assert engine.step() == []
    assert seq.finish_reason is FinishReason.ABORT
    assert engine.totals.as_dict()["requests"]["aborted"] == 1


def test_an_id_is_refused_while_it_waits_in_the_inbox_and_while_it_runs(engine: Engine) -> None:
    engine.submit("a", [1], 2)
    with pytest.raises(RequestRejected, match="in use"):
        engine.submit("a", [1], 2)
    engine.step()
    with pytest.raises(RequestRejected, match="in use"):
        engine.submit("a", [1], 2)
    drain(engine)
    engine.submit("a", [1], 2)


def test_what_can_never_run_is_refused_in_the_callers_thread(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="max_model_len"):
        engine.submit("a", [1] * 8000, 500)
    assert not engine.has_work()


def test_a_token_outside_the_vocabulary_is_refused_before_it_can_fail_a_batch() -> None:
    idle: Any = object()
    engine = Engine(EngineConfig(model=ModelConfig(vocab_size=10)), runner=idle)
    for token in (-1, 10):
        with pytest.raises(RequestRejected, match="token ids"):
            engine.submit("a", [3, token], 1)


def test_a_failing_runner_fails_its_batch_and_the_engine_goes_on(engine: Engine) -> None:
    def out_of_memory(batch: Batch) -> dict[str, int]:
        raise MemoryError(len(batch.members))

    doomed = engine.submit("a", list(range(40)), 5)
    sane = engine.runner
    engine.runner = type("Broken", (), {"run": staticmethod(out_of_memory)})()
    with pytest.raises(MemoryError):
        engine.step()
    assert doomed.finish_reason is FinishReason.ERROR
    assert engine.scheduler.blocks.free == engine.scheduler.blocks.total
    engine.runner = sane
    later = engine.submit("b", list(range(40)), 2)
    drain(engine)
    assert (len(later.output), later.num_cached) == (2, 0)
    assert engine.totals.as_dict()["requests"] == {
        "arrived": 2,
        "finished": 1,
        "aborted": 0,
        "failed": 1,
        "live": 0,
    }


def test_requests_from_many_threads_all_get_exactly_one_end(engine: Engine) -> None:
    def client(name: int) -> None:
        for number in range(50):
            engine.submit(f"{name}-{number}", [1 + name, 2, 3], 3)
            if number % 5 == 0:
                engine.abort(f"{name}-{number}")

    clients = [threading.Thread(target=client, args=(name,)) for name in range(4)]
    for thread in clients:
        thread.start()
    while any(thread.is_alive() for thread in clients):
        engine.step()
    drain(engine)
    requests = engine.totals.as_dict()["requests"]
    assert (requests["arrived"], requests["live"]) == (200, 0)
    assert requests["finished"] + requests["aborted"] == 200
    assert engine.scheduler.blocks.used == 0


def test_a_sleeping_loop_wakes_for_a_request(engine: Engine) -> None:
    assert not engine.wait_for_work(0.001)
    woken: list[bool] = []
    loop = threading.Thread(target=lambda: woken.append(engine.wait_for_work(30)))
    loop.start()
    engine.submit("a", [1], 1)
    loop.join(10)
    assert woken == [True]


def test_scheduling_and_the_cost_model_work_where_torch_is_missing() -> None:
    code = """
import sys
sys.modules["torch"] = None
from batchscope.engine.config import EngineConfig
from batchscope.engine.engine import Engine
engine = Engine(EngineConfig(runner="cost"))
engine.submit("a", [1, 2, 3], 2)
while engine.has_work():
    engine.step()
ours = {name for name in sys.modules if name.startswith("batchscope.")}
assert all(name.startswith("batchscope.engine") for name in ours), ours
print(engine.totals.as_dict()["tokens"]["output"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"


@pytest.mark.parametrize(
    "changes",
    [{"block_size": 0}, {"num_blocks": 4, "watermark_blocks": 4}, {"max_num_batched_tokens": 0}],
)
def test_a_configuration_that_can_not_work_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        EngineConfig(**changes)  # type: ignore[arg-type]
