# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""The real vLLM scheduler under the contract suite that every adapter must pass."""

import random
from types import SimpleNamespace

from tests.engines.vllm_driver import Driver
from tests.engines.vllm_parts import request, scheduler
from vllm.v1.request import RequestStatus

from batchscope.adapters import vllm as ours

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Counting(Driver):
    """Also counts who waits after each decision, and keeps what was given out."""

    def __init__(self, sched):
        super().__init__(sched)
        self.given = {}

    def count(self, batch, before):
        if batch.num_scheduled_tokens:
            self.counted["waiting"] += sum(self.sched.get_request_counts()[1:])
        return super().count(batch, before)

    def take(self, result):
        for group in result.values():
            for out in group.outputs:
                self.given.setdefault(out.request_id, []).extend(out.new_token_ids)
        super().take(result)

    def totals(self):
        counted = self.counted
        ends = sum(self.ends.values())
        return {
            "iterations": counted["iterations"],
            "requests": {
                "arrived": counted["arrived"],
                "live": counted["arrived"] - ends,
                "aborted": self.ends["abort"],
            },
            "preemptions": counted["preempted"],
            "member_steps": counted["members"],
            "tokens": {name: counted[name] for name in ("prefill", "decode", "output")},
            "deferrals": {"all": counted["waiting"]},
        }


class VllmDriver:
    """A small pool, preemptions, priorities, traces, a request whose grammar never comes."""

    name = "vllm"
    aborted = 2

    def adapter(self):
        return ours.adapter(self.engine())

    def engine(self, **_):
        return scheduler(blocks=40, max_num_seqs=8, max_num_batched_tokens=64)

    def run(self, engine, *, requests=40, every_step=lambda step: None):
        rng, driver = random.Random(11), Counting(engine)
        sent = steps = 0
        while sent < requests or engine.has_requests():
            if steps % 4 == 0 and sent < requests:
                for _ in range(4):
                    driver.add(one(sent, rng))
                    sent += 1
            if steps == 6:
                driver.add(held())
            if steps == 12:
                driver.abort(name(9))
            if steps == 30:
                driver.abort("held-0-00000000")
            driver.step()
            steps += 1
            every_step(steps)
        return driver.given, driver.totals()

    def owners(self, engine):
        return [engine, engine.kv_cache_manager]


def name(number):
    return f"cmpl-r{number}-0-{number:08x}"


def one(number, rng):
    return request(
        name(number),
        rng.randrange(20, 120),
        rng.randrange(1, 60),
        first=1 if number % 5 == 0 else number,
        priority=number % 3,
        trace_headers={"traceparent": TRACE} if number % 2 else None,
    )


def grammar_waits():
    """The status of a request whose grammar is being compiled, as this version calls it."""
    named = getattr(RequestStatus, "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", None)
    return named or RequestStatus.WAITING_FOR_FSM


def held():
    """Waits for a grammar."""
    new = request("held-0-00000000", 20, 4, first=60)
    new.status = grammar_waits()
    new.structured_output_request = SimpleNamespace(grammar=None)
    return new
