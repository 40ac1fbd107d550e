# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Requests whose prompt comes in pieces: an answer to each, then they wait for the next."""

import inspect

from tests.engines.vllm_driver import Driver, watched
from tests.engines.vllm_parts import NotHereError, request, scheduler
from vllm.v1.request import Request

PIECE = 40


def piece(name, number, tokens, *, last=False):
    """The next input of a session; the last one carries nothing but the end."""
    return request(name, PIECE, tokens, first=100 + number, resumable=not last)


class Sessions(Driver):
    """A session's answers go back into its prompt but for the last token, as vLLM does it."""

    def __init__(self, folder, **settings):
        if "resumable" not in inspect.signature(Request.__init__).parameters:
            raise NotHereError("no input in pieces")
        super().__init__(scheduler(**settings), in_flight=int(settings.get("asynchronous", False)))
        self.handle = watched(self.sched, folder)

    def more(self, name, number, tokens, **how):
        """Further input: not an arrival."""
        self.sched.add_request(piece(name, number, tokens, **how))

    def count(self, batch, before):
        for new in batch.scheduled_new_reqs:  # a session comes back with a longer prompt
            self.lengths[new.req_id] = self.sched.requests[new.req_id].num_tokens
        return super().count(batch, before)

    def until_it_waits(self, name):
        for _ in range(60):
            self.step()
            if self.sched.requests[name].status.name == "WAITING_FOR_STREAMING_REQ":
                return
        raise AssertionError(name)

    def result(self):
        self.drain()
        faults = self.handle.faults.count
        self.handle.detach()
        return {**super().result(), "faults": faults}


def session(folder, **settings):
    """Three inputs: one while it waits, one while it still answers; then its end."""
    driver = Sessions(folder, **settings)
    driver.add(request("r0", 30, 60))
    driver.add(piece("talk", 0, 6))
    driver.until_it_waits("talk")
    driver.step()
    driver.more("talk", 1, 8)
    driver.step()
    driver.more("talk", 2, 5)
    driver.until_it_waits("talk")
    driver.step()
    driver.more("talk", 3, 1, last=True)
    driver.ends["abort"] += 1
    return driver.result()


SCENARIOS = {
    "session": session,
    "session_async": lambda folder: session(folder, asynchronous=True),
}
