"""The demo's engine process: the bundled engine under two tenants' real-shaped traffic, observed.

Started by `batchscope demo` with one JSON argument; says on stdout what its traffic is when it is
ready, and its own totals when it is told to stop. The engine itself does not know of being watched.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchscope.engine.config import EngineConfig
    from batchscope.engine.engine import Engine
    from batchscope.workload.driver import OpenLoop
    from batchscope.workload.trace import Arrival, Trace

NS_PER_S = 1_000_000_000
IDLE_WAIT_S = 0.005
FLOOD_S, FLOOD_REQUESTS = 3.0, 400


@dataclass(frozen=True)
class Shape:
    """An engine and a traffic that press on each other: queues, preemptions, prefix hits.

    Rates are requests per second of the two tenants; `length_scale` shortens published lengths.
    With a `utilisation` the rates give only their ratio: both are scaled to that share of what
    this machine serves when it is flooded, so that a fast CPU is pressed, too, and a slow one not
    drowned.
    """

    config: dict[str, Any]
    chat_per_s: float
    code_per_s: float
    length_scale: float
    patience_s: float
    utilisation: float | None = None


SHAPES = {
    # a 7 B model on one A100, its pool cut so that bursts preempt
    "cost": Shape(
        {"num_blocks": 1100, "max_num_seqs": 32, "max_num_batched_tokens": 768},
        chat_per_s=2.2,
        code_per_s=0.6,
        length_scale=1.0,
        patience_s=6.0,
    ),
    # a tiny random model, real arithmetic; lengths fit a small CPU
    "torch": Shape(
        {"num_blocks": 250, "max_num_seqs": 32, "max_num_batched_tokens": 256},
        chat_per_s=5.0,
        code_per_s=1.2,
        length_scale=1 / 2,
        patience_s=3.0,
        utilisation=0.8,
    ),
}
ABORT_RATIO = 0.03
TENANT_SEEDS = {"chat": 1, "code": 2}
"""Of their token ids: tenants share no prompt."""


def main(argv: list[str]) -> int:
    """Run until SIGTERM, SIGINT, the time given, or the parent's death; print the totals."""
    spec = json.loads(argv[0])
    if spec["utilisation"] is not None:
        spec["load"] *= spec["utilisation"] * _served_per_s(spec) / _offered_per_s(spec)
    engine, handle = _observed_engine(spec)
    stop = _Stop(spec["parent"], spec["seconds"])
    traffic = {name: _traffic(name, spec) for name in TENANT_SEEDS}
    tenants = _tenants(traffic)
    print(json.dumps({name: trace.metadata() for name, trace in traffic.items()}), flush=True)
    _loop(engine, tenants, stop)
    totals = engine.totals.as_dict()
    handle.detach()
    print(json.dumps(totals), flush=True)
    return 0


class _Stop:
    """Asked between steps: has the time come to end?"""

    def __init__(self, parent: int, seconds: float | None) -> None:
        self._parent = parent
        self._until_ns = None if seconds is None else time.monotonic_ns() + int(seconds * NS_PER_S)
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)

    def _tell(self, _number: int, _frame: object) -> None:
        self._told = True

    def __bool__(self) -> bool:
        late = self._until_ns is not None and time.monotonic_ns() >= self._until_ns
        return self._told or late or os.getppid() != self._parent


def _offered_per_s(spec: dict[str, Any]) -> float:
    return sum(float(spec[f"{name}_per_s"]) for name in TENANT_SEEDS)


def _served_per_s(spec: dict[str, Any]) -> float:
    """Requests per second of an unobserved engine that always has a queue, for FLOOD_S."""
    from batchscope.engine.engine import Engine

    engine = Engine(_config(spec))
    for name in TENANT_SEEDS:
        trace = _traffic(name, spec)
        share = spec[f"{name}_per_s"] / _offered_per_s(spec)
        for arrival in list(trace)[: round(FLOOD_REQUESTS * share)]:
            _submit(engine, name, arrival)
    engine.step()
    began, served = time.monotonic(), 0
    while engine.has_work() and time.monotonic() < began + FLOOD_S:
        served += len(engine.step())
    return max(1.0, served / (time.monotonic() - began))


def _config(spec: dict[str, Any]) -> EngineConfig:
    from batchscope.engine.config import EngineConfig

    return EngineConfig(runner=spec["engine"], seed=spec["seed"], **spec["config"])


def _observed_engine(spec: dict[str, Any]) -> tuple[Engine, Any]:
    from batchscope.adapters import mini
    from batchscope.engine.engine import Engine

    engine = Engine(_config(spec))
    return engine, mini.attach(engine, os.environ)


def _tenants(traffic: dict[str, Trace]) -> list[tuple[str, OpenLoop]]:
    from batchscope.workload.driver import OpenLoop

    start_ns = time.monotonic_ns()
    return [(n, OpenLoop(trace, start_ns=start_ns, laps=None)) for n, trace in traffic.items()]


def _traffic(name: str, spec: dict[str, Any]) -> Trace:
    """One tenant's traffic, clipped to what the engine can hold."""
    from batchscope.workload.presets import preset
    from batchscope.workload.shape import clipped, impatient

    rate = spec[f"{name}_per_s"] * spec["load"]
    requests = max(2, round(rate * 600))
    drawn = preset(
        name,
        rate_per_s=rate,
        requests=requests,
        seed=spec["seed"],
        length_scale=spec["length_scale"],
    )
    held = spec["config"]["num_blocks"] * 16 // 4
    fitted = clipped(drawn, max_prompt_tokens=held, max_output_tokens=held)
    patience_ns = int(spec["patience_s"] * NS_PER_S)
    return impatient(
        fitted, abort_ratio=ABORT_RATIO, mean_patience_ns=patience_ns, seed=spec["seed"]
    )


def _loop(engine: Engine, tenants: list[tuple[str, OpenLoop]], stop: _Stop) -> None:
    while not stop:
        now = time.monotonic_ns()
        for name, loop in tenants:
            for arrival in loop.due(now):
                _submit(engine, name, arrival)
            for arrival in loop.cancelled(now):
                engine.abort(_request_id(name, arrival))
        if engine.has_work():
            engine.step()
        else:
            time.sleep(IDLE_WAIT_S)


def _submit(engine: Engine, tenant: str, arrival: Arrival) -> None:
    from batchscope.workload.prompts import prompt_ids

    vocab = engine.config.model.vocab_size
    prompt = prompt_ids(arrival, vocab=vocab, seed=TENANT_SEEDS[tenant])
    engine.submit(_request_id(tenant, arrival), prompt, arrival.output_tokens, tenant=tenant)


def _request_id(tenant: str, arrival: Arrival) -> str:
    return f"{tenant}-{arrival.ordinal}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
