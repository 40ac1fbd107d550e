# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""A client that leaves, in every state in which its request can be; pictures that don't fit."""

import inspect
from types import SimpleNamespace

from tests.engines.vllm_driver import Driver, watched
from tests.engines.vllm_parts import NotHereError, called, held, request, scheduler
from vllm.multimodal import inputs
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.request import Request


class Leaving(Driver):
    """Aborts the first request that it finds in each state, once."""

    def __init__(self, sched, handle):
        super().__init__(sched)
        self.handle, self.left = handle, {}

    def look(self):
        for found in list(self.sched.requests.values()):
            state = state_of(found)
            if state not in self.left and not found.is_finished():
                self.left[state] = found.request_id
                self.abort(found.request_id)
                return


def state_of(found):
    status = found.status.name
    if status != "RUNNING":
        return "BLOCKED" if status.startswith("WAITING_FOR") else status
    if found.num_computed_tokens < found.num_prompt_tokens:
        return "INSIDE" if found.num_output_tokens == 0 else "INSIDE_AGAIN"
    return "DECODE"


def aborts(folder):
    """A small pool, long prompts, small budget: every state comes by."""
    sched = scheduler(blocks=40, max_num_seqs=8, max_num_batched_tokens=64)
    handle = watched(sched, folder)
    driver = Leaving(sched, handle)
    for number in range(16):
        driver.add(request(f"r{number}", 40 + 7 * number, 60, first=number))
    driver.add(held(SimpleNamespace(grammar=None)))
    for _ in range(200):
        driver.step()
        driver.look()
    driver.abort("held")
    driver.drain()
    handle.detach()
    return {**driver.result(), "faults": handle.faults.count, "left": driver.left}


def picture(name, tokens):
    """A request that begins with a picture of so many tokens."""
    if "mm_features" not in inspect.signature(Request.__init__).parameters:
        raise NotHereError("no features of several modes")
    at = inputs.PlaceholderRange(offset=0, length=tokens)
    seen = called(
        inputs.MultiModalFeatureSpec, data=None, modality="image", identifier=name, mm_position=at
    )
    return request(name, tokens + 20, 4, first=len(name), mm_features=[seen])


def encoder(folder):
    """The encoder can take one picture in a step, the cache two."""
    sched = scheduler()
    sched.max_num_encoder_input_tokens = 50
    sched.encoder_cache_manager = EncoderCacheManager(cache_size=100)
    handle = watched(sched, folder)
    driver = Driver(sched)
    for name in ("a", "bb", "ccc"):
        driver.add(picture(name, 40))
    driver.drain()
    handle.detach()
    return {**driver.result(), "faults": handle.faults.count}


SCENARIOS = {"aborts": aborts, "encoder": encoder}
