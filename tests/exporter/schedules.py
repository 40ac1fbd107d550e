"""A random engine that writes a Script: every trap the fold must survive, by a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.records import Script

from batchscope.schemas import records as r

REASONS = ("token_budget", "max_requests", "kv_blocks", "preemption", None)


@dataclass
class Job:
    serial: int
    prompt: int
    want: int
    computed: int = 0  # as scheduled
    settled: int = 0  # as completed
    out: int = 0
    target: int = 0
    hit: int = 0
    preemptions: int = 0
    state: str = "waiting"
    batches: int = 0
    cached: int = 0
    announced: bool = True


@dataclass
class Batch:
    iteration: int
    prefill: list[tuple[int, int, int]] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    drafts: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)


class Engine:
    """`depth` batches in flight. `features`: names of what may happen besides."""

    def __init__(
        self, seed: int, *, depth: int = 1, features: frozenset[str] = frozenset(), budget: int = 16
    ) -> None:
        self.rng = Random(seed)
        self.depth, self.features, self.budget = depth, features, budget
        self.script = Script(block_tokens=4)
        self.now = 0
        self.jobs: dict[int, Job] = {}
        self.flight: list[Batch] = []
        self.serial = 0
        self.last_decode: list[int] | None = None
        self.blocked: dict[int, str] = {}
        self.veil = 0

    def may(self, feature: str, chance: float) -> bool:
        return feature in self.features and self.rng.random() < chance

    def tick(self, most: int = 30) -> int:
        self.now += self.rng.randint(0, most)
        return self.now

    def run(self, steps: int) -> Script:
        for _ in range(steps):
            self.act()
        return self.script

    def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.3 and len(self.jobs) < 12:
            self.arrive()
        self.trouble()
        if len(self.flight) < self.depth:
            self.schedule()
        if self.flight and (len(self.flight) >= self.depth or rng.random() < 0.4):
            self.complete(rng.randrange(len(self.flight)) if self.may("disorder", 0.1) else 0)

    def arrive(self) -> None:
        self.serial += 1
        job = self.jobs[self.serial] = Job(
            self.serial, self.rng.randint(1, 40), self.rng.randint(1, 30)
        )
        job.target = job.prompt
        if self.may("late_live", 0.3):
            job.announced = False
        else:
            self.script.arrived(self.serial, prompt=job.prompt, at=self.tick(), max_tokens=job.want)
        if self.may("twice", 0.3):
            self.script.arrived(self.serial, prompt=job.prompt, at=self.tick())

    def trouble(self) -> None:
        rng, script = self.rng, self.script
        if self.may("clock", 0.05):
            script.segment(at=self.tick(), unix_ns=rng.randint(0, 10**15))
        if self.may("segments", 0.08):
            script.pad().segment(at=self.tick())
            for job in self.jobs.values():
                self.live(job)
            self.last_decode = None
        if self.may("abort", 0.05) and self.jobs:
            self.end(rng.choice(list(self.jobs.values())), "abort")
        if self.may("empty", 0.1):
            script.empty(at=self.tick(), first=self.now, schedules=3)
        if self.may("loss", 0.02):
            self.lose()
        if self.may("bye", 0.01):
            self.bye()
        if self.may("blocked", 0.2):
            self.block()
        if self.may("idle", 0.03):
            self.tick(3000)
        if self.may("back", 0.03):
            self.now = max(0, self.now - 40)

    def live(self, job: Job) -> None:
        if not job.announced and self.rng.random() < 0.3:
            return
        job.announced = True
        self.script.live(
            job.serial,
            prompt=job.prompt,
            at=self.tick(2),
            computed=job.settled,
            output=job.out,
            phase=None if job.state == "waiting" and not job.preemptions else "decode",
            preemptions=job.preemptions,
            cached_tokens=job.cached,
        )

    def block(self) -> None:
        waiting = [j.serial for j in self.jobs.values() if j.state == "waiting"]
        if self.blocked and self.rng.random() < 0.6:
            serial = self.rng.choice(sorted(self.blocked))
            del self.blocked[serial]
            self.script.unblocked(serial, at=self.tick(), reason="grammar")
        elif waiting:
            serial = self.rng.choice(waiting)
            reason = self.blocked[serial] = self.rng.choice(("grammar", "transfer"))
            self.script.blocked(serial, at=self.tick(), reason=reason)

    def lose(self) -> None:
        self.script.loss(records=self.rng.randint(1, 9), iterations=self.rng.choice((None, 0, 2)))
        for job in list(self.jobs.values()):
            if self.rng.random() < 0.3:
                del self.jobs[job.serial]
                self.blocked.pop(job.serial, None)
        if self.flight and self.rng.random() < 0.5:
            self.flight.pop()
        self.script.segment(at=self.tick())
        for job in self.jobs.values():
            if self.rng.random() < 0.8:
                self.live(job)
        self.last_decode = None

    def bye(self) -> None:
        self.script.bye(at=self.tick())
        self.jobs.clear()
        self.flight.clear()
        self.blocked.clear()
        self.last_decode = None

    def schedule(self) -> None:
        rng = self.rng
        batch, left = Batch(0), self.budget
        self.preempt()
        for job in list(self.jobs.values()):
            if job.state == "running" and not self.may("absent", 0.1):
                left -= self.place(job, batch, left)
        for job in list(self.jobs.values()):
            ready = job.state == "waiting" and job.serial not in self.blocked and left > 0
            if ready and rng.random() < 0.7:
                self.admit(job)
                left -= self.place(job, batch, left)
        self.write(batch)

    def preempt(self) -> None:
        running = [j for j in self.jobs.values() if j.state == "running"]
        if running and self.may("preempt", 0.15):
            job = self.rng.choice(running)
            self.script.preempted(job.serial, at=self.tick(3), lost=job.computed)
            job.state, job.computed, job.settled = "waiting", 0, 0
            job.preemptions += 1

    def admit(self, job: Job) -> None:
        job.state = "running"
        total = job.prompt + job.out
        job.hit = self.rng.choice((0, 0, min(4, total - 1)))
        job.computed = job.settled = job.hit
        if job.preemptions:
            job.target = total
            self.script.resumed(job.serial, at=self.tick(3), target=total, cached=job.hit)
        else:
            job.cached = job.hit

    def place(self, job: Job, batch: Batch, left: int) -> int:
        if left <= 0 or job.out + job.batches > job.want + 1:
            return 0
        batch.epochs[job.serial] = job.preemptions
        if job.computed < job.target:
            n = min(job.target - job.computed, left)
            batch.prefill.append((job.serial, job.computed, n))
            job.computed += n
            job.batches += 1
            return n
        n = 1
        if "spec" in self.features and job.batches == 0:
            n = min(self.rng.choice((1, 3, 3, 3)), left)
        if n > 1:
            batch.drafts[job.serial] = n
        batch.decode.append(job.serial)
        job.computed += 1
        job.batches += 1
        return n

    def write(self, batch: Batch) -> None:
        rng, script = self.rng, self.script
        flags = 0
        if not (batch.prefill or batch.decode):
            if not self.may("dummy", 0.5):
                return
            flags = r.DUMMY
        waiting = sum(j.state == "waiting" for j in self.jobs.values())
        running = sum(j.state == "running" for j in self.jobs.values())
        stop = rng.choice(REASONS)
        same = len(batch.decode) if batch.decode == self.last_decode else None
        self.last_decode = batch.decode
        if self.may("hidden", self.hidden_chance()):
            same, flags, self.last_decode = None, flags | r.NO_MEMBERS, None
            counts: dict[str, Any] = {
                "n_decode": len(batch.decode),
                "n_prefill": len(batch.prefill),
                "prefill_tokens": sum(n for _, _, n in batch.prefill),
                "decode_tokens": len(batch.decode),
            }
            script.scheduled(
                at=self.tick(), flags=flags, running=running, waiting=waiting, stop=stop, **counts
            )
        else:
            script.scheduled(
                at=self.tick(),
                prefill=batch.prefill,
                decode=batch.decode,
                drafts=batch.drafts,
                same=same,
                flags=flags,
                budget=self.budget,
                running=running,
                waiting=waiting,
                stop=stop,
                deferred=self.deferred(stop),
                observer_ns=rng.choice((None, 7)),
                schedule_ns=rng.randint(0, 5),
                kv=(64, rng.randint(0, 32), rng.randint(0, 32)),
            )
        batch.iteration = script.iteration
        self.flight.append(batch)

    def deferred(self, stop: str | None) -> list[tuple[int, str]]:
        """Who waits, by what it waits for; some engines can't say it of everybody."""
        waiting = [j.serial for j in self.jobs.values() if j.state == "waiting"]
        reasons = Counter(self.blocked.get(serial, stop or "unknown") for serial in waiting)
        if self.may("vague", 0.3):
            reasons[stop or "unknown"] -= 1
        return [(n, reason) for reason, n in reasons.items() if n > 0]

    def hidden_chance(self) -> float:
        if self.veil > 0:
            self.veil -= 1
            return 1.0
        if self.rng.random() < 0.05:
            self.veil = self.rng.randint(1, 5)
        return 0.05

    def complete(self, index: int) -> None:
        batch = self.flight.pop(index)
        if self.may("fails", 0.05):
            return
        if self.may("breaks", 0.1):
            self.break_down(batch)
            return
        emitted: dict[int, int] = {}
        ended: list[Job] = []
        for serial, start, n in batch.prefill:
            self.book(serial, batch, emitted, ended, start + n)
        for serial in batch.decode:
            self.book(serial, batch, emitted, ended, None)
        self.script.completed(at=self.tick(), iteration=batch.iteration, emitted=emitted)
        if self.may("double", 0.05):
            self.script.completed(at=self.tick(), iteration=batch.iteration)
        for job in ended:
            self.end(job, self.rng.choice(("stop", "length")))

    def break_down(self, batch: Batch) -> None:
        """The step fails, and its members with it."""
        for serial in {*batch.decode, *(serial for serial, _, _ in batch.prefill)}:
            if serial in self.jobs:
                self.end(self.jobs[serial], "error")

    def book(
        self, serial: int, batch: Batch, emitted: dict[int, int], ended: list[Job], upto: int | None
    ) -> None:
        job = self.jobs.get(serial)
        if job is None or job.preemptions != batch.epochs[serial]:
            if self.rng.random() < 0.8:
                emitted[serial] = 0
            elif job is not None:
                job.out += 1
            if job is not None:
                job.batches -= 1
            return
        job.batches -= 1
        n = 1
        if upto is not None:
            job.settled = upto
            n = int(upto >= job.target)
        elif serial in batch.drafts:
            n = self.rng.randint(1, batch.drafts[serial])
            job.computed += n - 1
        elif self.may("dropped", 0.05):
            n = 0
            job.computed -= 1
        if upto is None:
            job.settled += n
        if n != 1:
            emitted[serial] = n
        job.out += n
        if job.out >= job.want and job not in ended:
            ended.append(job)

    def end(self, job: Job, reason: str) -> None:
        self.jobs.pop(job.serial, None)
        self.blocked.pop(job.serial, None)
        self.script.finished(job.serial, at=self.tick(3), output=job.out, reason=reason)
