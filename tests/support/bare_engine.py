"""The bundled engine in a process of its own, where nothing else of batchscope is found.

    PYTHONPATH=engine python tests/support/bare_engine.py [calm | busy]

Stops when its stdin is closed; a thread waits for that. `calm` pauses between steps, `busy` never
does, and has two more threads that allocate all the while. At the end: how many requests were
submitted, and how many finished.
"""

import importlib.util
import select
import sys
import threading
import time

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine

ENOUGH_WAITING = 20
PAUSE_S = 0.001


def listen(stop: threading.Event) -> None:
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass
    stop.set()


def churn(stop: threading.Event) -> None:
    held: list[bytearray] = []
    while not stop.is_set():
        held.append(bytearray(700 + len(held) % 5000))  # too large for Python's own pools
        del held[: len(held) // 400 * 400]


def serve(engine: Engine, stop: threading.Event, *, pause_s: float | None) -> int:
    submitted = 0
    while not stop.is_set():
        if len(engine.scheduler.waiting) < ENOUGH_WAITING:
            prompt = [submitted % 500] * (4 + submitted % 100)
            engine.submit(f"r{submitted}", prompt, 1 + submitted % 50)
            submitted += 1
        engine.step()
        if pause_s:
            time.sleep(pause_s)
    while engine.has_work():
        engine.step()
    return submitted


def main(mode: str) -> None:
    assert importlib.util.find_spec("batchscope.adapters") is None
    config = EngineConfig(
        num_blocks=40,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=512,
        runner="cost",
    )
    engine, stop = Engine(config, runner=CostRunner(sleep=lambda seconds: None)), threading.Event()
    busy = mode == "busy"
    for work in [listen, *([churn, churn] if busy else [])]:
        threading.Thread(target=work, args=(stop,), daemon=True).start()
    print("running", flush=True)
    submitted = serve(engine, stop, pause_s=None if busy else PAUSE_S)
    print(submitted, engine.totals.as_dict()["requests"]["finished"])


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["calm"]))
