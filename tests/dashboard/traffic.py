"""A few minutes of made-up traffic as table rows: a small stall-free scheduler over a cost model.

Feeds fake_exporter.py. Not an engine: just enough of one that every pane has something to show.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

BLOCK_TOKENS = 16
RING = 0xB5C0_0000_0000_0001

Row = dict[str, Any]


@dataclass
class Live:
    serial: int
    arrived: int
    prompt: int
    output: int
    done: int = 0
    emitted: int = 0
    preemptions: int = 0
    first_token: int | None = None
    last_token: int | None = None
    scheduled: int | None = None
    gaps: list[int] = field(default_factory=list)
    on_time: int = 0
    run: Row | None = None

    @property
    def blocks(self) -> int:
        return -(-self.done // BLOCK_TOKENS)

    @property
    def left(self) -> int:
        return self.prompt + self.emitted - self.done if not self.decoding else 0

    @property
    def decoding(self) -> bool:
        return self.emitted > 0 and self.done >= self.prompt + self.emitted - 1


class Traffic:
    """Runs from `start_ns` on for `seconds`; `tables` then holds the rows."""

    def __init__(
        self, *, start_ns: int, seconds: float, slots: int, blocks: int, rate: float
    ) -> None:
        self.rng = random.Random(7)
        self.tables: dict[str, list[Row]] = {}
        self.now = self.start = start_ns
        self.end = start_ns + int(seconds * 1e9)
        self.slots, self.total, self.rate = slots, blocks, rate
        self.budget = 512
        self.running: list[Live] = []
        self.waiting: list[Live] = []
        self.serial = self.iteration = 0
        self.next_arrival = start_ns

    def add(self, table: str, **row: Any) -> Row:
        row = {"ring_id": RING, "batch_id": 1, **row}
        self.tables.setdefault(table, []).append(row)
        return row

    def arrive(self) -> None:
        while self.next_arrival <= self.now:
            self.serial += 1
            prompt = min(4000, int(self.rng.lognormvariate(6.0, 0.9)))
            output = min(400, max(2, int(self.rng.lognormvariate(4.4, 0.6))))
            self.waiting.append(Live(self.serial, self.next_arrival, prompt, output))
            burst = 2.2 if int((self.next_arrival - self.start) / 2e10) % 2 else 0.6
            self.next_arrival += int(self.rng.expovariate(self.rate * burst) * 1e9)

    @property
    def used(self) -> int:
        return sum(live.blocks for live in self.running)

    def preempt(self) -> None:
        victim = self.running.pop()
        self.close(victim)
        self.add(
            "preemptions",
            serial=victim.serial,
            iteration_id=self.iteration + 1,
            at_ns=self.now,
            unix_ns=self.now,
            lost_tokens=victim.done,
            mode="recompute",
            reason="kv_blocks",
        )
        victim.done, victim.preemptions = 0, victim.preemptions + 1
        self.waiting.insert(0, victim)

    def decide(self) -> tuple[list[tuple[Live, int]], str | None]:
        while self.used + len(self.running) > self.total and len(self.running) > 1:
            self.preempt()
        batch = [(live, 1) for live in self.running if live.decoding]
        budget = self.budget - len(batch)
        for live in [live for live in self.running if not live.decoding]:
            chunk = min(budget, live.left)
            if chunk:
                batch.append((live, chunk))
                budget -= chunk
        while self.waiting:
            head = self.waiting[0]
            if len(self.running) >= self.slots:
                return batch, "max_requests"
            if budget <= 0:
                return batch, "token_budget"
            if self.used + -(-(head.left + 64) // BLOCK_TOKENS) > self.total:
                return batch, "kv_blocks"
            self.running.append(self.waiting.pop(0))
            head.scheduled = head.scheduled or self.now
            chunk = min(budget, head.left)
            batch.append((head, chunk))
            budget -= chunk
        return batch, None

    def close(self, live: Live) -> None:
        if live.run:
            self.tables.setdefault("runs", []).append(live.run)
        live.run = None

    def step_run(self, live: Live, phase: str, tokens: int, emitted: int) -> None:
        run = live.run
        same = run and (run["phase"], run["tokens_each"], run["emitted_each"]) == (
            phase,
            tokens,
            emitted,
        )
        if run and same and run["first_iteration"] + run["n_iterations"] == self.iteration:
            run["n_iterations"] += 1
        else:
            self.close(live)
            live.run = {
                "ring_id": RING,
                "batch_id": 1,
                "serial": live.serial,
                "first_iteration": self.iteration,
                "n_iterations": 1,
                "stride": 1,
                "phase": phase,
                "recompute": live.preemptions > 0 and phase == "prefill",
                "tokens_each": tokens,
                "emitted_each": emitted,
                "emitted": None,
                "context_first": live.done,
            }
        assert live.run
        live.run["unix_ns"] = self.now

    def step(self) -> None:
        self.arrive()
        if not self.running and not self.waiting:
            self.now = self.next_arrival
            return
        decided = self.now
        batch, stop = self.decide()
        self.iteration += 1
        self.deferrals(stop, decided)
        prefill = sum(tokens for live, tokens in batch if not live.decoding)
        decode = len([1 for live, _ in batch if live.decoding])
        context = sum(live.done for live, _ in batch)
        exec_ns = int(
            1e6
            + max(9.3e6, 0.07e6 * (prefill + decode))
            + 85 * context * self.rng.uniform(0.9, 1.1)
        )
        host = int(self.rng.uniform(2e5, 5e5))
        interval = exec_ns + host
        used, prefills = self.used, [live.decoding for live, _ in batch].count(False)
        recomputed = sum(tokens for live, tokens in batch if not live.decoding and live.preemptions)
        self.now += interval
        emitted, exact = self.emit(batch, interval)
        self.add(
            "iterations",
            iteration_id=self.iteration,
            completion_index=self.iteration,
            unix_ns=self.now,
            scheduled_at_ns=decided + host,
            completed_at_ns=self.now,
            schedule_ns=host // 2,
            interval_ns=interval,
            host_ns=host,
            exec_ns=exec_ns,
            idle_ns=0,
            phase="mixed" if prefill and decode else "prefill" if prefill else "decode",
            budget_tokens=self.budget,
            prefill_tokens=prefill,
            decode_tokens=decode,
            draft_tokens=0,
            recomputed_tokens=recomputed,
            output_tokens=emitted,
            prefill_members=prefills,
            decode_members=decode,
            decode_gap_members=exact,
            decode_context_tokens=context,
            prefill_context_product=0,
            running=len(self.running),
            waiting=len(self.waiting),
            admission_stop=stop,
            kv_total_blocks=self.total,
            kv_used_blocks=min(used, self.total),
            kv_evictable_blocks=min(max(0, self.total - used), self.iteration // 8),
            observer_ns=int(self.rng.lognormvariate(9.4, 0.2)),
            dummy=False,
        )

    def emit(self, batch: list[tuple[Live, int]], interval: int) -> tuple[int, int]:
        emitted = exact = 0
        for live, tokens in batch:
            decoding = live.decoding
            last = decoding or tokens == live.left
            self.step_run(live, "decode" if decoding else "prefill", tokens, int(last))
            live.done += tokens
            if last:
                gap = self.token(live)
                emitted, exact = emitted + 1, exact + (gap == interval)
                if gap is not None and gap != interval:
                    self.add(
                        "gaps",
                        serial=live.serial,
                        iteration_id=self.iteration,
                        from_iteration=self.iteration - 2,
                        gap_ns=gap,
                        tokens=1,
                        preempted=live.preemptions > 0,
                        unix_ns=self.now,
                    )
        return emitted, exact

    def token(self, live: Live) -> int | None:
        gap = self.now - live.last_token if live.last_token else None
        live.first_token, live.last_token = live.first_token or self.now, self.now
        live.emitted += 1
        live.on_time += self.now <= live.arrived + 2_000_000_000 + (live.emitted - 1) * 60_000_000
        live.gaps += [gap] if gap is not None else []
        if live.emitted >= live.output:
            self.finish(live)
        return gap

    def finish(self, live: Live) -> None:
        self.running.remove(live)
        self.close(live)
        self.tables.setdefault("requests", []).append(self.request(live, finished=True))

    def request(self, live: Live, *, finished: bool) -> Row:
        ttft = live.first_token - live.arrived if live.first_token else None
        gaps = sorted(live.gaps)
        missed = (ttft or 0) > 2e9 or (bool(gaps) and gaps[-1] > 2e8)
        return {
            "ring_id": RING,
            "batch_id": 1,
            "serial": live.serial,
            "request_key": f"{live.serial * 0x9E3779B97F4A7C15 % 2**64:016x}",
            "prompt_tokens": live.prompt,
            "max_tokens": 400,
            "arrived_at_ns": live.arrived,
            "arrived_unix_ns": live.arrived,
            "first_scheduled_at_ns": live.scheduled,
            "first_token_at_ns": live.first_token,
            "last_token_at_ns": live.last_token,
            "finished_at_ns": self.now if finished else None,
            "unix_ns": self.now,
            "finish_reason": self.rng.choice(["stop", "stop", "length", "abort"])
            if finished
            else None,
            "prefill_tokens": live.prompt,
            "decode_tokens": max(0, live.emitted - 1),
            "output_tokens": live.emitted,
            "engine_output_tokens": live.emitted,
            "cached_tokens": 0,
            "cached_on_resume_tokens": 0,
            "recomputed_tokens": 0,
            "steps": live.emitted,
            "preemptions": live.preemptions,
            "lost_tokens": 0,
            "deferrals": 0,
            "queue_ns": live.scheduled - live.arrived if live.scheduled else None,
            "ttft_ns": ttft,
            "e2e_ns": live.last_token - live.arrived if live.last_token else None,
            "tbt_p99_ns": gaps[int(len(gaps) * 0.99)] if gaps else None,
            "on_time_tokens": live.on_time,
            "slo": "demo",
            "slo_version": 1,
            "verdict": ("missed" if missed else "met") if finished else None,
            "broken": False,
        }

    def deferrals(self, stop: str | None, decided: int) -> None:
        if stop is None or not self.waiting:
            return
        positions = (
            (("head", 1), ("behind", len(self.waiting) - 1))
            if stop == "kv_blocks"
            else (("global", len(self.waiting)),)
        )
        for position, count in positions:
            if count:
                self.add(
                    "deferrals",
                    iteration_id=self.iteration,
                    unix_ns=decided,
                    reason=stop,
                    position=position,
                    requests=count,
                )

    def run(self) -> dict[str, list[Row]]:
        """All rows, the open ones included."""
        while self.now < self.end:
            self.step()
        self.tables["requests_open"] = [
            self.request(live, finished=False) for live in self.running + self.waiting
        ]
        self.tables["runs_open"] = [live.run for live in self.running if live.run]
        self.about()
        return self.tables

    def about(self) -> None:
        model = (
            "acme-labs/Extremely-Long-Model-Name-70B-Instruct-FP8-dynamic-2026-revision-with-more"
        )
        config = {
            "max_num_seqs": self.slots,
            "max_num_batched_tokens": self.budget,
            "num_blocks": self.total,
            "policy": "chunked",
        }
        self.add(
            "engines",
            ring_uuid="b5" * 16,
            engine="mini-0",
            kind="mini",
            version="0.1.0",
            model_name=model,
            role="both",
            dp_rank=0,
            config_hash="c0ffee",
            block_tokens=BLOCK_TOKENS,
            provides="{}",
            adapter_version="0.1.0",
            attached_unix_ns=self.start,
            state="live",
        )
        self.tables["configs"] = [
            {"config_hash": "c0ffee", "config": json.dumps(config), "batch_id": 1}
        ]
        self.add("audit", law="tokens_emitted", checks=self.iteration, violations=0)
        self.tables["marks"] = [
            {
                "unix_ns": self.end - 48_000_000_000,
                "kind": "user",
                "engine": None,
                "text": "deploy 1.4.2",
                "batch_id": 1,
            }
        ]

    def lose(self, *, from_ns: int, seconds: float) -> None:
        """Forget what was seen in a stretch, as a reader that was overtaken would."""
        until = from_ns + int(seconds * 1e9)
        gone = [row for row in self.tables["iterations"] if from_ns < row["unix_ns"] < until]
        self.tables["iterations"] = [row for row in self.tables["iterations"] if row not in gone]
        self.add(
            "losses",
            unix_ns=from_ns,
            first_seq=1,
            records=2 * len(gone),
            iterations=len(gone),
            rejected=0,
        )
