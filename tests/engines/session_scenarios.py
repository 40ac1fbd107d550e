# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Requests whose prompt comes in pieces: an answer to each, then they wait for the next."""

import inspect

from tests.engines.vllm_driver import Driver, watched
from tests.engines.vllm_parts import STOP_TOKEN, NotHereError, request, scheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

PIECE = 40


class Sessions(Driver):
    """Each piece counts as a request; of its answer vLLM keeps all but the last token."""

    def __init__(self, folder, **settings):
        if "resumable" not in inspect.signature(Request.__init__).parameters:
            raise NotHereError("no input in pieces")
        stops = inspect.getsource(Scheduler._handle_stopped_request)
        if settings and "drop_stale_output" not in stops:
            raise NotHereError("ends an answer twice under asynchronous scheduling")
        super().__init__(scheduler(**settings), in_flight=int(settings.get("asynchronous", False)))
        self.handle = watched(self.sched, folder)
        self.answers, self.stops = {}, {}

    def talk(self, name, tokens, *, stops_after=0):
        """The next piece, whose answer ends after `tokens`, or by itself before."""
        new = request(name, PIECE, tokens, first=len(self.answers) + 100, resumable=True)
        if name in self.sched.requests:
            self.sched.add_request(new)
            self.counted["arrived"] += 1
        else:
            self.add(new)
        self.answers.setdefault(name, [])
        self.stops.setdefault(name, []).append(stops_after)

    def hang_up(self, name):
        """The end of a session is a piece that can't be followed."""
        self.sched.add_request(request(name, 1, 1, resumable=False))

    def count(self, batch, before):
        for new in batch.scheduled_new_reqs:  # with a longer prompt each time
            self.lengths[new.req_id] = self.sched.requests[new.req_id].num_tokens
            self.admitted.discard(new.req_id)
            self.answers.setdefault(new.req_id, []).append(0)
        return super().count(batch, before)

    def tokens(self, batch, name):
        (token,) = super().tokens(batch, name)
        turn = len(self.answers[name]) - 1
        if name in self.stops and self.stops[name][turn] == self.answers[name][turn] + 1:
            return [STOP_TOKEN]
        return [token]

    def take(self, result):
        groups = result.values() if isinstance(result, dict) else [result]
        for out in (out for group in groups for out in group.outputs):
            self.answers[out.request_id][-1] += len(out.new_token_ids)
        super().take(result)

    def until_it_rests(self, name):
        for _ in range(60):
            self.step()
            if self.sched.requests[name].status.name == "WAITING_FOR_STREAMING_REQ":
                return
        raise AssertionError(name)

    def result(self):
        self.drain()
        faults = self.handle.faults.count
        self.handle.detach()
        return {**super().result(), "faults": faults, "answers": self.answers}


def session(folder, **settings):
    """Three pieces, the last one before the second is answered; the end comes while it rests."""
    driver = Sessions(folder, **settings)
    driver.add(request("r0", 30, 60))
    driver.talk("talk", 6)
    driver.until_it_rests("talk")
    driver.step()
    driver.talk("talk", 12, stops_after=7)
    driver.step()
    driver.talk("talk", 20, stops_after=5)
    driver.until_it_rests("talk")
    driver.step()
    driver.hang_up("talk")
    driver.talk("cut", 30)
    for _ in range(4):
        driver.step()
    driver.abort("cut")
    return driver.result()


SCENARIOS = {
    "session": session,
    "session_async": lambda folder: session(folder, asynchronous=True),
}
