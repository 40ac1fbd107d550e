# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Prefill and decode apart: a real Scheduler with its half of vLLM's own NIXL connector.

The workers' half needs a GPU's network: what it would say of transfers is said by the driver.
"""

import time
from dataclasses import fields

from tests.engines.vllm_driver import Driver, watched
from tests.engines.vllm_parts import called, request, scheduler
from vllm.v1 import outputs

FETCH = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "theirs",
    "remote_request_id": "r",
    "remote_block_ids": [1, 2, 3],
    "remote_host": "127.0.0.1",
    "remote_port": 1,
    "tp_size": 1,
}
KEEP = {"do_remote_prefill": False, "do_remote_decode": True}
PROMPT = 100


class Hops(Driver):
    """Keeps what it saw of each hop: between which instants it began and ended, how much moved."""

    def __init__(self, folder, *, kv_role, asynchronous=False):
        sched = scheduler(kv_role=kv_role, asynchronous=asynchronous)
        super().__init__(sched, in_flight=int(asynchronous))
        self.handle = watched(sched, folder)
        self.hops = {}

    def ask(self, name, tokens=4, **params):
        self.add(request(name, PROMPT, tokens, first=len(self.lengths) * 9, extra=params))

    def steps(self, count):
        for _ in range(count):
            self.step()

    def until(self, holds, *, name, direction):
        """Step until a hop is under way; `start` are the instants around the last step."""
        for _ in range(20):
            before = time.monotonic_ns()
            self.step()
            if holds(self.sched.requests[name]):
                start = [before, time.monotonic_ns()]
                self.hops[name] = {"start": start, "direction": direction, "failed": False}
                return
        raise AssertionError(name)

    def load(self, name):
        """Ask for a request whose KV is elsewhere, and wait until it is being fetched."""
        self.ask(name, kv_transfer_params=dict(FETCH))
        self.until(is_loading, name=name, direction="in")
        self.hops[name]["blocks"] = len(blocks_of(self.sched, name))

    def end(self, *names, nbytes=(), expired=0, bad=()):
        """The workers say of these that they have come, or gone."""
        out = self.hops[names[0]]["direction"] == "out"
        said = {"finished_sending" if out else "finished_recving": set(names)}
        self.told = called(
            outputs.KVConnectorOutput,
            **said,
            invalid_block_ids=set(bad),
            kv_connector_stats=self.stats(nbytes, expired),
        )
        self.queue_up(names)

    def queue_up(self, names):
        before, told = time.monotonic_ns(), self.told
        while self.told is told:
            self.step()
        for name in names:
            self.hops[name]["end"] = [before, time.monotonic_ns()]

    def stats(self, nbytes, expired):
        if not hasattr(self.sched.connector, "build_kv_connector_stats"):
            return None
        stats = self.sched.connector.build_kv_connector_stats()
        stats.data["bytes_transferred"] += nbytes
        stats.data.get("num_kv_expired_reqs", []).extend([1] * expired)
        return stats

    def more_bytes(self, *nbytes):
        """Some have come, and no hop is at its end."""
        self.told = called(
            outputs.KVConnectorOutput, kv_connector_stats=self.stats(nbytes, expired=0)
        )
        self.queue_up(())

    def result(self):
        self.drain()
        faults = self.handle.faults.count
        self.handle.detach()
        return {**super().result(), "faults": faults, "hops": self.hops}


def is_loading(waiting):
    return waiting.status.name == "WAITING_FOR_REMOTE_KVS"


def is_kept(ended):
    return ended.is_finished()


def blocks_of(sched, name):
    return sched.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks[name]


def tells(what):
    return what in {field.name for field in fields(outputs.KVConnectorOutput)}


def fetch(folder, **settings):
    """The decode side: one load alone, two at once, one that fails, one whose client has left."""
    driver = Hops(folder, kv_role="kv_consumer", **settings)
    driver.add(request("local", 30, 40))
    driver.load("alone")
    driver.more_bytes(3000)
    driver.end("alone", nbytes=[500, 500])
    counts = tells("kv_connector_stats")
    driver.hops["alone"]["bytes"] = 4000 if counts else None
    driver.load("one")
    driver.load("two")
    driver.end("one", "two", nbytes=[1000, 2000])
    driver.steps(3)
    driver.load("left")
    driver.abort("left")
    driver.steps(2)
    driver.end("left")
    if tells("invalid_block_ids"):
        driver.load("lost")
        bad = [block.block_id for block in blocks_of(driver.sched, "lost")]
        driver.end("lost", bad=bad)
        driver.hops["lost"]["failed"] = True
    return driver.result()


def keep(folder):
    """The prefill side: blocks are held after the end, until they were fetched or time is up."""
    driver = Hops(folder, kv_role="kv_producer")
    driver.add(request("local", 30, 40))
    for name in ("fetched", "forgotten"):
        driver.ask(name, 1, kv_transfer_params=dict(KEEP))
        driver.until(is_kept, name=name, direction="out")
    driver.steps(3)
    driver.end("fetched")
    driver.end("forgotten", expired=1)
    known = driver.stats((), 0)
    driver.hops["forgotten"]["failed"] = bool(known) and "num_kv_expired_reqs" in known.data
    return driver.result()


def transfer(folder):
    """One load, with others before and behind it in the queue."""
    driver = Hops(folder, kv_role="kv_consumer")
    driver.add(request("r0", 30, 20))
    driver.load("remote")
    driver.add(request("r9", 30, 20, first=9))
    driver.steps(2)
    driver.end("remote")
    return driver.result()


SCENARIOS = {
    "fetch": fetch,
    "fetch_async": lambda folder: fetch(folder, asynchronous=True),
    "keep": keep,
    "transfer": transfer,
}
