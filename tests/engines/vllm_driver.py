# mypy: ignore-errors
# (vLLM is in an environment of its own)
"""Steps a scheduler as vLLM's engine core does, and counts by itself what the outputs say."""

import random
from collections import Counter, deque

import numpy as np
import torch
import vllm
from tests.engines.vllm_parts import STOP_TOKEN, called, request
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from batchscope.adapters import vllm as ours


def watched(sched, folder, *, active=True):
    env = {"BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
    env |= {"BATCHSCOPE_RING_BYTES": str(16 << 20), "BATCHSCOPE_REQUEST_IDS": "plain"}
    handle = ours.attach(sched, env | ({"BATCHSCOPE": "1"} if active else {}))
    assert handle.attached, "not attached"
    return handle


class Driver:
    """One scheduler with up to `in_flight` batches between its two calls.

    With `drafts` every decode member gets so many draft tokens, some of which are accepted; with
    `pools` requests end with their prompt. `told` is what the next output says of KV transfers,
    `targets` are tokens to compute before a request emits.
    """

    def __init__(self, sched, *, in_flight=0, stop_every=0, drafts=0, pools=False):
        self.sched, self.in_flight, self.stop_every = sched, in_flight, stop_every
        self.drafts, self.pools = drafts, pools
        self.random = random.Random(3)
        self.queue = deque()
        self.counted = Counter()
        self.ends = Counter()
        self.targets, self.lengths = {}, {}
        self.told = None
        self.admitted = set()

    def add(self, new):
        self.sched.add_request(new)
        self.lengths[new.request_id] = new.num_tokens
        self.counted["arrived"] += 1
        return new

    def abort(self, name):
        if name in self.sched.requests:
            self.sched.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self.ends["abort"] += 1

    def abort_some(self, *, last):
        """The newest that runs, or the first that waits."""
        if last and self.sched.running:
            self.abort(self.sched.running[-1].request_id)
        elif self.sched.waiting:
            self.abort(next(iter(self.sched.waiting)).request_id)

    def step(self, *args):
        """Schedule, and update with the oldest batch once enough are in flight."""
        before = {i for i, r in self.sched.requests.items() if r.status.name == "PREEMPTED"}
        batch = self.sched.schedule(*args)
        self.queue.append((batch, self.count(batch, before)))
        if len(self.queue) > self.in_flight:
            self.update(*self.queue.popleft())
        return batch

    def count(self, batch, before):
        """Members by phase from the output alone; who emits."""
        starts = {new.req_id: new.num_computed_tokens for new in batch.scheduled_new_reqs}
        for name in starts:
            self.targets[name] = self.lengths[name]
        first = starts.keys() - self.admitted
        self.counted["cached"] += sum(starts[name] for name in first)
        self.admitted |= first
        starts |= dict(self.cached(batch))
        self.preempted(before)
        emits = []
        for name, tokens in batch.num_scheduled_tokens.items():
            inside = max(0, min(tokens, self.targets[name] - starts[name]))
            self.counted["prefill"] += inside
            self.counted["decode"] += tokens - inside
            if starts[name] + tokens >= self.targets[name]:
                emits.append(name)
        self.counted["iterations"] += bool(batch.num_scheduled_tokens)
        self.counted["members"] += len(batch.num_scheduled_tokens)
        self.counted["draft"] += sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        return emits

    def cached(self, batch):
        """(name, tokens computed before) of members that were known; resumed ones get a target."""
        known = batch.scheduled_cached_reqs
        if isinstance(known, list):
            rows = [(k.req_id, k.num_computed_tokens, k.resumed_from_preemption) for k in known]
        else:
            back = getattr(known, "resumed_req_ids", None)
            if back is None:
                flags = zip(known.req_ids, known.resumed_from_preemption, strict=True)
                back = {name for name, resumed in flags if resumed}
            rows = [
                (name, done, name in back)
                for name, done in zip(known.req_ids, known.num_computed_tokens, strict=True)
            ]
        for name, _, resumed in rows:
            if resumed:
                self.targets[name] = self.lengths[name]
        return [(name, done) for name, done, _ in rows]

    def preempted(self, before):
        now = {i for i, r in self.sched.requests.items() if r.status.name == "PREEMPTED"}
        self.counted["preempted"] += len(now - before)

    def update(self, batch, emits):
        """Hand in what a model would have answered."""
        names = list(batch.num_scheduled_tokens)
        tokens = [self.tokens(batch, name) if name in emits else [] for name in names]
        if vllm.__version__.startswith("0.11"):
            tokens = [np.array(one, dtype=np.int64) for one in tokens]
        pooled = [torch.zeros(1) if name in emits else None for name in names]
        output = called(
            ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[] if self.pools else tokens,
            spec_token_ids=None,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=pooled if self.pools else [],
            num_nans_in_logits=None,
            kv_connector_output=self.told,
        )
        self.told = None
        self.take(self.answer(batch, output))
        if self.drafts:
            self.draft()

    def answer(self, batch, output):
        return self.sched.update_from_output(batch, output)

    def tokens(self, batch, name):
        """One sampled token after those drafts that are accepted."""
        self.counted["sampled"] += 1
        ends = self.stop_every and self.counted["sampled"] % self.stop_every == 0
        drafts = len(batch.scheduled_spec_decode_tokens.get(name, ()))
        return [7] * self.random.randint(0, drafts) + [STOP_TOKEN if ends else 7]

    def draft(self):
        for running in self.sched.running:
            if running.num_computed_tokens >= running.num_tokens - 1:
                running.spec_token_ids = [7] * self.drafts

    def take(self, result):
        groups = result.values() if isinstance(result, dict) else [result]
        for out in (out for group in groups for out in group.outputs):
            self.counted["output"] += len(out.new_token_ids)
            self.lengths[out.request_id] += len(out.new_token_ids)
            if out.finish_reason is not None:
                self.ends[str(out.finish_reason)] += 1

    def drain(self, most=3000):
        for _ in range(most):
            if self.sched.has_requests():
                self.step()
            elif self.queue:
                self.update(*self.queue.popleft())
            else:
                return
        raise AssertionError(f"never ends: {self.counted}")

    def result(self):
        return {"counted": dict(self.counted), "ends": dict(self.ends)}


def load(driver, *, requests=40, each=lambda: None, before=lambda: None):
    """Bursts of mixed lengths with shared prefixes, aborts, a pool that is too small for all.

    `before` and `each` are called before and after every step.
    """
    rng = random.Random(5)
    sent = steps = 0
    while sent < requests or driver.sched.has_requests():
        for _ in range(rng.choice((0, 3, 5)) if sent < requests and steps % 8 == 0 else 0):
            driver.add(mixed(sent, rng, pools=driver.pools))
            sent += 1
        before()
        driver.step()
        each()
        steps += 1
        if steps % 24 == 0:
            driver.abort_some(last=steps % 48 == 0)
        assert steps < 5000, driver.counted
    driver.drain()


def mixed(number, rng, *, pools):
    first = rng.choice((1, 2, 100 + number))
    tokens = rng.randrange(2, 90)
    return request(f"r{number}", rng.randrange(4, 200), 0 if pools else tokens, first=first)
