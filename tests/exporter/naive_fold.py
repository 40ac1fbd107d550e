"""The fold, record by record, in plain Python: slow, obvious, and the judge of the fast one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from struct import Struct
from typing import Any

from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, FinishReason, Phase, Verdict
from batchscope.schemas.slo import Slo

Row = dict[str, Any]
Tails = dict[str, list[Any]]

IN_FLIGHT, RUN_STEPS = 64, 4096
UNKNOWN_REASON = DeferralReason.UNKNOWN.code
BAD = {
    FinishReason.ABORT.code: Verdict.ABORTED.code,
    FinishReason.ERROR.code: Verdict.FAILED.code,
    FinishReason.SHED.code: Verdict.SHED.code,
}


def parse(body: bytes) -> tuple[r.Record, Row, Tails]:
    """(record, fields with None for NULL, tails)."""
    record = r.BY_KIND[int.from_bytes(body[:2], "little")]
    _, flags, *values = record.struct.unpack_from(body)
    fields: Row = {"flags": flags}
    for field, value in zip(record.fields, values, strict=True):
        fields[field.name] = None if field.optional and value == r.NULL[field.code] else value
    tails: Tails = {}
    at = record.struct.size
    for tail in record.tails:
        row = Struct("<" + "".join(f.code for f in tail.fields))
        n = fields[tail.count]
        if record is r.SCHEDULED and (
            (tail.name == "decode" and flags & r.SAME_DECODES)
            or (tail.name != "deferred" and flags & r.NO_MEMBERS)
        ):
            n = 0
        tails[tail.name] = [row.unpack_from(body, at + i * row.size) for i in range(n)]
        at += n * row.size
    return record, fields, tails


class Request:
    key: Any
    prompt: Any
    max_tokens: Any
    arrived: Any
    arrived_unix: Any
    first_sched: Any
    first_token: Any
    last_token: Any
    ctx: Any
    stale_ctx: Any
    target: Any
    hit: Any
    cached: Any
    last: Any
    last_step: Any
    run: Any
    since: Any
    cur: Any
    t0: Any
    in_step: Any
    preempt_ids: list[int]
    gaps: list[int]
    booked: defaultdict[Any, list[int]]

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.named = self.broken = self.suspect = False
        self.key = self.prompt = self.max_tokens = None
        self.arrived = self.arrived_unix = self.first_sched = None
        self.first_token = self.last_token = None
        self.first_ok = self.out_known = self.gaps_ok = True
        self.ctx, self.stale_ctx = 0, None
        self.out = self.steps = self.prefill = self.decode = self.recomputed = self.on_time = 0
        self.target = self.hit = self.cached = None
        self.fresh = self.due = self.cached_resume = self.preemptions = self.lost = 0
        self.preempt_ids = []
        self.last = None  # (k, c, iteration) of the last emission
        self.crossed = False
        self.last_step = None
        self.run = None
        self.gaps = []
        self.waiting = False
        self.since = None
        self.admission = 0
        self.resumed = False
        self.counted = False
        self.cur = None  # (reason, skipped) that time is booked to, since self.t0
        self.t0 = None
        self.booked = defaultdict(lambda: [0, 0])
        self.in_step = None
        self.deferrals = 0

    def blur(self) -> None:
        self.broken = True
        self.ctx = self.stale_ctx = self.last_token = self.last = self.last_step = None
        self.first_ok = self.out_known = self.gaps_ok = False
        self.crossed = False
        self.run = None
        self.gaps = []
        self.waiting = self.resumed = self.counted = False
        self.booked.clear()
        self.cur = None


class NaiveFold:
    c: Any
    next_id: Any
    last_set: Any
    mark_t: Any
    d: Any
    stop: Any
    check_id: Any
    at: Any
    rows: defaultdict[str, list[Row]]
    counters: Counter[Any]
    live: dict[int, Request]
    gone: dict[int, Any]
    flight: dict[int, Row]
    deferred: Counter[int]
    blocked: dict[int, Any]

    def __init__(self, hello: Row, slo: Slo | None = None) -> None:
        self.block = hello.get("block_tokens")
        self.slo = slo
        self.offset = hello["unix_ns"] - hello["mono_ns"]
        self.rows = defaultdict(list)
        self.counters = Counter()
        self.live = {}
        self.gone = {}
        self.flight = {}
        self.k = 0
        self.c = None
        self.next_id = None
        self.last_set = None
        self.live_count, self.synced, self.prev_synced = 0, False, False
        self.mark_t, self.idle = None, 0
        self.d = self.stop = None
        self.deferred = Counter()
        self.blocked = {}
        self.lossy = False
        self.check_id, self.check_step = None, 0
        self.at = None
        self.hidden_last = False

    def feed(self, bodies: Iterable[bytes]) -> dict[str, list[Row]]:
        for body in bodies:
            record, f, tails = parse(body)
            handler = getattr(self, f"on_{record.name}", None)
            if handler:
                handler(f, tails)
            if record is r.SCHEDULED:
                self.check_lost(f)
            if "at_ns" in f:
                self.at = f["at_ns"]
        return self.rows

    def count(self, name: str, n: int, *labels: str) -> None:
        if n:
            self.counters[name, labels] += n

    def mark(self, t: int) -> None:
        if self.mark_t is not None:
            t = max(t, self.mark_t)
            if self.live_count <= 0:
                self.idle += t - self.mark_t
        self.mark_t = t

    def on_segment(self, f: Row, _: Tails) -> None:
        self.offset = f["unix_ns"] - f["mono_ns"]
        self.next_id = f["iteration_id"]

    def on_arrived(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        if s in self.live or s in self.gone:
            return
        q = self.live[s] = Request(s)
        self.name(q, f)
        q.target = q.prompt
        q.arrived, q.arrived_unix = f["at_ns"], f["at_ns"] + self.offset
        q.waiting, q.since = True, f["at_ns"]
        self.count("requests_arrived", 1)
        self.mark(f["at_ns"])
        self.live_count += 1

    def name(self, q: Request, f: Row) -> None:
        q.named = True
        q.key, q.prompt, q.max_tokens = f["key"], f["prompt_tokens"], f["max_tokens"]

    def on_live(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        if s in self.gone:
            return
        q = self.live.get(s)
        if q is None:
            q = self.live[s] = Request(s)
            q.broken = bool(
                f["computed_tokens"] or f["output_tokens"] or f["preemptions"] or f["phase"]
            )
        elif q.named and q.out_known and q.ctx is not None:
            return
        self.name(q, f)
        q.suspect = False
        q.ctx, q.out, q.out_known = f["computed_tokens"], f["output_tokens"], True
        q.gaps_ok = f["output_tokens"] == 0
        q.first_ok = f["phase"] == 0 and q.first_sched is None
        q.cached = q.hit = f["cached_tokens"]
        q.preemptions = q.admission = f["preemptions"]
        q.preempt_ids = [0, *q.preempt_ids] if q.preemptions else q.preempt_ids
        q.target = None if q.preemptions else q.prompt

    def stranger(self, s: int) -> Request:
        q = self.live[s] = Request(s)
        q.broken = True
        q.first_ok = q.out_known = q.gaps_ok = False
        q.ctx = None
        return q

    def on_scheduled(self, f: Row, tails: Tails) -> None:
        i, d, flags = f["iteration_id"], f["at_ns"], f["flags"]
        if flags & r.SAME_DECODES:
            decode = self.last_set
        elif flags & r.NO_MEMBERS:
            decode = None
        else:
            decode = [s for (s,) in tails["decode"]]
        self.last_set = decode
        unknown = decode is None and not flags & r.DUMMY
        if unknown:
            self.forget()
        self.give_up(i)
        self.next_id = i + 1
        if i - 1 in self.flight:
            before = self.flight[i - 1]
            before["observer"] = f["observer_ns"]
            if before["done"]:
                self.write_iteration(i - 1)
        self.flight[i] = {
            **f,
            "decode": decode,
            "unknown": unknown,
            "prefill": tails["prefill"],
            "drafts": dict(tails["drafts"]),
            "done": False,
            "sched_unix": d + self.offset,
            "observer": None,
        }
        if not self.synced:
            self.live_count = f["running"] + f["waiting"]
            self.synced = True
        members = [*(decode or ()), *(s for s, _, _ in tails["prefill"])]
        for s in members:
            if s not in self.live and s not in self.gone:
                self.stranger(s)
            if s in self.live:
                self.live[s].suspect = False
        self.deferrals(f, tails["deferred"])
        self.decide(f, set(members), {s: start for s, start, _ in tails["prefill"]})
        self.d, self.stop = d, f["admission_stop"] or UNKNOWN_REASON

    def give_up(self, i: int) -> None:
        for j in [j for j, b in self.flight.items() if not b["done"] and j + IN_FLIGHT <= i]:
            self.write_iteration(j)

    def deferrals(self, f: Row, rows: Any) -> None:
        if self.d is not None:
            for reason, n in self.deferred.items():
                self.count("deferred_seconds", n * max(0, f["at_ns"] - self.d), word(reason))
        self.deferred = Counter()
        for n, reason, position in rows:
            self.deferred[reason] += n
            self.count("deferrals", n, word(reason))
            self.rows["deferrals"].append(
                {
                    "iteration_id": f["iteration_id"],
                    "unix_ns": f["at_ns"] + self.offset,
                    "reason": reason,
                    "position": position,
                    "requests": n,
                }
            )

    def decide(self, f: Row, members: set[int], starts: dict[int, int]) -> None:
        d = f["at_ns"]
        reason = f["admission_stop"] or UNKNOWN_REASON
        for s in sorted(self.live):
            q = self.live[s]
            admitted = s in members and q.first_ok and q.first_sched is None
            if admitted:
                q.first_sched = d
                if q.arrived is not None:
                    self.count("clamped_durations", int(d < q.arrived))
                if s in starts:
                    q.cached = q.hit = starts[s]
                    self.count("cached_tokens", starts[s])
            if not q.waiting:
                continue
            self.settle(q, d)
            if not q.counted and q.admission == 0 and q.in_step is None:
                q.in_step = max(0, d - q.since)
            if (q.admission == 0 and admitted) or q.resumed:
                self.end_wait(q, d)
                continue
            q.counted = True
            skipped = s in self.blocked
            q.cur = (self.blocked[s][0], 1) if skipped else (reason, 0)
            q.t0 = d
            q.booked[q.cur][0] += 1

    def settle(self, q: Request, t: int) -> None:
        if q.counted and q.cur is not None:
            q.booked[q.cur][1] += max(0, t - q.t0)
            q.t0 = t

    def end_wait(self, q: Request, t: int) -> None:
        if q.serial in self.blocked:
            self.unblock(q.serial, t)
        unix = t + self.offset
        for (reason, skipped), (n, ns) in sorted(
            q.booked.items(), key=lambda x: (x[0][1], x[0][0])
        ):
            self.rows["waits"].append(
                {
                    "serial": q.serial,
                    "admission": q.admission,
                    "reason": reason,
                    "skipped": skipped,
                    "decisions": n,
                    "wait_ns": ns,
                    "unix_ns": unix,
                }
            )
            q.deferrals += n
            self.count("deferred_requests", 1, word(reason))
        q.waiting = q.resumed = q.counted = False
        q.booked.clear()
        q.cur = None

    def on_blocked(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        if s in self.live:
            self.live[s].suspect = False
        if s in self.blocked:
            self.unblock(s, f["at_ns"])
        self.blocked[s] = (f["reason"], f["at_ns"])

    def on_unblocked(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        if s in self.live:
            self.live[s].suspect = False
        if s in self.blocked:
            self.unblock(s, f["at_ns"])

    def unblock(self, s: int, t: int) -> None:
        reason, since = self.blocked.pop(s)
        self.rows["blocked"].append(
            {
                "serial": s,
                "reason": reason,
                "from_ns": since,
                "to_ns": t,
                "unix_ns": t + self.offset,
            }
        )

    def on_preempted(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        self.rows["preemptions"].append(
            {
                "serial": s,
                "iteration_id": self.next_id,
                "at_ns": f["at_ns"],
                "unix_ns": f["at_ns"] + self.offset,
                "lost_tokens": f["lost_tokens"],
            }
        )
        self.count("preemptions", 1)
        self.count("preemption_lost_tokens", f["lost_tokens"])
        q = self.live.get(s)
        if q is None:
            return
        q.suspect = False
        q.lost += f["lost_tokens"]
        q.due += self.due(q)
        q.preemptions += 1
        q.admission += 1
        q.preempt_ids.append(self.next_id)
        q.stale_ctx, q.ctx = q.ctx, 0
        q.crossed = True
        q.waiting, q.since, q.counted, q.resumed = True, f["at_ns"], False, False

    def due(self, q: Request) -> int:
        if None in (q.ctx, q.target, q.hit) or not q.ctx:
            return 0
        return int(max(0, min(q.ctx, q.target) - q.hit))

    def on_resumed(self, f: Row, _: Tails) -> None:
        q = self.live.get(f["serial"])
        if q is None:
            return
        q.suspect = False
        q.target, q.hit = f["target_tokens"], f["cached_tokens"]
        q.cached_resume += f["cached_tokens"]
        q.ctx = f["cached_tokens"]
        q.resumed = q.waiting

    def on_completed(self, f: Row, tails: Tails) -> None:
        i, c = f["iteration_id"], f["at_ns"]
        b = self.flight.get(i)
        if b is None or b["done"]:
            self.c = None
            return
        if b["unknown"]:
            self.forget()
        self.mark(c)
        idle, self.idle = self.idle, 0
        b.update(done=True, k=self.k, c=c, unix=c + self.offset, forward=f["forward_ns"])
        b["interval"] = b["host"] = b["exec"] = b["idle_ns"] = None
        plain = False
        if self.c is not None and self.prev_synced:
            span = c - self.c
            self.count("clamped_durations", int(span < 0))
            plain = span >= 0
            span = max(span, 0)
            idle = min(idle, span)
            plain = plain and idle == 0
            host = min(max(0, b["at_ns"] - self.c - idle), span - idle)
            b.update(interval=span - idle, host=host, exec=span - idle - host, idle_ns=idle)
        emitted: dict[int, int] = dict(tails["emitted"])
        b["gap_members"] = b["decode_ctx"] = b["product"] = b["recomputed"] = 0
        b["output"] = b["n_decode"] + b["n_prefill"] + sum(n - 1 for _, n in tails["emitted"])
        for s in b["decode"] or ():
            self.step(b, s, "decode", None, b["drafts"].get(s, 1), emitted.get(s, 1), plain)
        for s, start, tokens in b["prefill"]:
            self.step(b, s, "prefill", start, tokens, emitted.get(s, 1), plain)
        if b["unknown"]:
            b["gap_members"] = b["decode_ctx"] = b["product"] = None
            b["recomputed"] = b["output"] = None
        held = [q.ctx for q in self.live.values()]
        clear = None not in held and not b["unknown"]
        b["context"] = sum(held) if clear else None
        b["waste"] = sum(-x % self.block for x in held) if clear and self.block else None
        self.k += 1
        self.c, self.prev_synced = c, self.synced
        self.count_iteration(b)
        if self.next_id > i + 1:
            self.write_iteration(i)

    def step(
        self, b: Row, s: int, kind: str, start: Any, tokens: int, emitted: int, plain: bool
    ) -> None:
        q = self.live.get(s)
        if q is None:
            self.late_step(b, s, kind, start, tokens)
            return
        i = b["iteration_id"]
        if not q.named:
            self.count("unresolved_members", 1)
        stale = bool(q.preempt_ids) and i < q.preempt_ids[-1]
        recompute = kind == "prefill" and any(n <= i for n in q.preempt_ids)
        if kind == "decode" and not q.steps and q.ctx == 0 and not q.preemptions and not stale:
            q.ctx = q.prompt
        before = q.stale_ctx if stale else q.ctx
        self.extend_run(q, b, kind, start, tokens, emitted, recompute, before, q.admission - stale)
        if kind == "decode":
            self.decode_step(q, b, before, tokens, 0 if stale else emitted)
        else:
            self.prefill_step(q, b, start, tokens, recompute, stale)
        q.steps += 1
        q.last_step = i
        if emitted:
            self.emit(q, b, emitted, plain)

    def late_step(self, b: Row, s: int, kind: str, start: Any, tokens: int) -> None:
        ctx, preempts, named = self.gone[s]
        if kind == "decode":
            b["decode_ctx"] = None if None in (ctx, b["decode_ctx"]) else b["decode_ctx"] + ctx
            return
        b["product"] += tokens * start
        if not named:
            b["recomputed"] = None
        if b["recomputed"] is not None and any(n <= b["iteration_id"] for n in preempts):
            b["recomputed"] += tokens

    def decode_step(self, q: Request, b: Row, before: Any, tokens: int, grown: int) -> None:
        b["decode_ctx"] = None if None in (before, b["decode_ctx"]) else b["decode_ctx"] + before
        q.decode += tokens
        if q.ctx is not None:
            q.ctx += grown

    def prefill_step(
        self, q: Request, b: Row, start: Any, tokens: int, recompute: bool, stale: bool
    ) -> None:
        b["product"] += tokens * start
        q.prefill += tokens
        if recompute:
            q.recomputed += tokens
        if not q.named:
            b["recomputed"] = None
        if recompute and b["recomputed"] is not None:
            b["recomputed"] += tokens
        if not stale:
            q.fresh += tokens
            q.ctx = start + tokens

    def emit(self, q: Request, b: Row, n: int, plain: bool) -> None:
        i, k, c = b["iteration_id"], b["k"], b["c"]
        if q.last is None and q.out == 0 and q.out_known:
            q.first_token = c
            if q.arrived is not None:
                self.count("clamped_durations", int(c < q.arrived))
            if n > 1:
                self.gap(q, b, i, 0, n - 1)
        elif q.last is not None:
            pk, pc, pi = q.last
            if pk == k - 1 and n == 1 and plain and not q.crossed:
                b["gap_members"] += 1
                q.gaps.append(b["interval"])
            else:
                self.count("clamped_durations", int(c < pc))
                self.gap(q, b, pi, max(0, c - pc), n)
        slo = self.slo
        deadlines = slo.deadlines if slo else None
        if slo and deadlines and q.arrived is not None and q.out_known:
            ontime = sum(
                c <= q.arrived + deadlines[0] + (q.out + x) * deadlines[1] for x in range(n)
            )
            q.on_time += ontime
            self.count("on_time_tokens", ontime, slo.name)
        q.out += n
        q.last, q.last_token, q.crossed = (k, c, i), c, False

    def gap(self, q: Request, b: Row, since: int, ns: int, tokens: int) -> None:
        self.rows["gaps"].append(
            {
                "serial": q.serial,
                "iteration_id": b["iteration_id"],
                "from_iteration": since,
                "gap_ns": ns,
                "tokens": tokens,
                "preempted": int(q.crossed),
                "unix_ns": b["unix"],
            }
        )
        q.gaps += [ns] + [0] * (tokens - 1)

    def extend_run(
        self,
        q: Request,
        b: Row,
        kind: str,
        start: Any,
        tokens: int,
        emitted: int,
        recompute: bool,
        before: Any,
        admission: int,
    ) -> None:
        i, run = b["iteration_id"], q.run
        distance = None if q.last_step is None else i - q.last_step
        phase = 1 if kind == "prefill" else 2
        ctx = start if kind == "prefill" else before
        same = (
            run is not None
            and (phase, tokens, recompute, admission)
            == (run["phase"], run["tokens"], run["recompute"], run["admission"])
            and ((tokens > 1 and phase == 2) or emitted == run["last_emitted"])
            and (phase == 2 or start == run["end"])
            and run["stride"] in (0, distance)
        )
        if not same:
            if run is not None:
                self.close_run(q)
            run = q.run = {
                "phase": phase,
                "tokens": tokens,
                "recompute": recompute,
                "admission": admission,
                "stride": 0,
                "steps": [],
            }
        elif not run["stride"]:
            run["stride"] = distance
        if not run["steps"]:
            run["first"], run["ctx"] = i, ctx
        run["steps"].append(emitted)
        run["unix"], run["last_emitted"] = b["unix"], emitted
        run["end"] = ctx + tokens if phase == 1 else None
        if len(run["steps"]) == RUN_STEPS:
            self.rows["runs"].append(self.run_row(q))
            run["steps"] = []

    def close_run(self, q: Request) -> None:
        if q.run is not None and q.run["steps"]:
            self.rows["runs"].append(self.run_row(q))
        q.run = None

    def run_row(self, q: Request) -> Row:
        run, steps = q.run, q.run["steps"]
        even = len(set(steps)) == 1
        return {
            "serial": q.serial,
            "first_iteration": run["first"],
            "n_iterations": len(steps),
            "stride": max(run["stride"], 1),
            "phase": run["phase"],
            "recompute": int(run["recompute"]),
            "tokens_each": run["tokens"],
            "emitted_each": steps[0] if even else None,
            "emitted": None if even else list(steps),
            "context_first": run["ctx"],
            "unix_ns": run["unix"],
        }

    def on_finished(self, f: Row, _: Tails) -> None:
        s = f["serial"]
        q = self.live.get(s)
        if q is None:
            if not self.lossy or s in self.gone:
                return
            q = self.stranger(s)
        self.mark(f["at_ns"])
        self.live_count -= 1
        if q.waiting:
            self.defer_no_longer(q, f["at_ns"])
            self.settle(q, f["at_ns"])
            if s in self.blocked:
                self.unblock(s, f["at_ns"])
            self.end_wait(q, f["at_ns"])
        self.finish(q, f["at_ns"], f["reason"] or FinishReason.UNKNOWN.code, f)

    def open_deferrals(self) -> dict[int, int]:
        return {s: q.deferrals + sum(n for n, _ in q.booked.values()) for s, q in self.live.items()}

    def defer_no_longer(self, q: Request, t: int) -> None:
        reason = q.cur[0] if q.counted and q.cur else None
        if reason is not None and self.deferred[reason] > 0:
            self.deferred[reason] -= 1
            self.count("deferred_seconds", max(0, t - self.d), word(reason))

    def finish(self, q: Request, at: int, reason: int, f: Row, *, known: bool = True) -> None:
        self.close_run(q)
        self.rows["requests"].append(self.request_row(q, at, reason, f))
        del self.live[q.serial]
        self.gone[q.serial] = (q.ctx, q.preempt_ids, q.named)
        self.count("requests_finished", 1, list(FinishReason)[reason - 1].value)

    def request_row(self, q: Request, at: int, reason: int, f: Row) -> Row:
        def since(end: int | None, begin: int | None) -> int | None:
            return None if end is None or begin is None else max(0, end - begin)

        gaps = sorted(q.gaps) if q.gaps_ok and q.first_token is not None else []

        def quantile(a: int) -> int | None:
            return gaps[-(-len(gaps) * a // 100) - 1] if gaps else None

        span = since(q.last_token, q.first_token)
        row = {
            "serial": q.serial,
            "request_key": None if q.key is None else f"{q.key:016x}",
            "prompt_tokens": q.prompt,
            "max_tokens": q.max_tokens,
            "arrived_at_ns": q.arrived,
            "arrived_unix_ns": q.arrived_unix,
            "first_scheduled_at_ns": q.first_sched,
            "first_token_at_ns": q.first_token,
            "last_token_at_ns": q.last_token,
            "finished_at_ns": at,
            "unix_ns": at + self.offset,
            "finish_reason": reason,
            "prefill_tokens": q.prefill,
            "decode_tokens": q.decode,
            "output_tokens": q.out,
            "engine_output_tokens": f.get("output_tokens"),
            "cached_tokens": q.cached,
            "cached_on_resume_tokens": q.cached_resume,
            "recomputed_tokens": q.recomputed,
            "steps": q.steps,
            "preemptions": q.preemptions,
            "lost_tokens": q.lost,
            "deferrals": q.deferrals,
            "in_step_ns": q.in_step,
            "queue_ns": since(q.first_sched, q.arrived),
            "ttft_ns": since(q.first_token, q.arrived),
            "e2e_ns": since(q.last_token, q.arrived),
            "tpot_ns": span // (q.out - 1)
            if span is not None and q.out > 1 and q.gaps_ok
            else None,
            "tbt_p50_ns": quantile(50),
            "tbt_p90_ns": quantile(90),
            "tbt_p95_ns": quantile(95),
            "tbt_p99_ns": quantile(99),
            "tbt_max_ns": quantile(100),
            "on_time_tokens": q.on_time
            if self.slo and self.slo.deadlines and q.arrived is not None and not q.broken
            else None,
            "broken": int(q.broken),
        }
        row["verdict"] = self.verdict(row)
        return row

    def verdict(self, row: Row) -> int | None:
        if self.slo is None:
            return None
        reason = row["finish_reason"]
        values = {term: row[f"{term}_ns"] for term, _ in self.slo.targets}
        missed = [t for t, n in self.slo.targets if values[t] is not None and values[t] > n]
        if reason in BAD:
            out = BAD[reason]
        elif missed:
            out = Verdict.MISSED.code
        elif None in values.values() or reason == FinishReason.UNKNOWN.code:
            out = Verdict.UNDETERMINED.code
        else:
            out = Verdict.MET.code
        if reason not in BAD:
            for term in missed:
                self.count("slo_missed", 1, self.slo.name, term)
        self.count("slo_requests", 1, self.slo.name, list(Verdict)[out - 1].value)
        return out

    def forget(self) -> None:
        for s in sorted(self.live):
            self.close_run(self.live[s])
            self.live[s].blur()
        self.blocked.clear()

    def cut(self) -> None:
        self.forget()
        for i in [i for i, b in self.flight.items() if b["done"]]:
            self.write_iteration(i)
        self.c = self.d = self.mark_t = None
        self.idle, self.synced, self.last_set = 0, False, None
        self.prev_synced = False
        self.deferred = Counter()

    def on_loss(self, f: Row, _: Tails) -> None:
        self.rows["losses"].append(
            {
                "unix_ns": None if self.at is None else self.at + self.offset,
                "first_seq": f["first_seq"],
                "records": f["records"],
                "iterations": f["iterations"],
                "rejected": f["rejected"],
            }
        )
        self.count("lost_records", f["records"])
        self.count("lost_iterations", f["iterations"] or 0)
        self.count("rejected_records", f["rejected"])
        self.cut()
        self.lossy = True
        for q in self.live.values():
            q.suspect = True
        self.check_id, self.check_step = 0, IN_FLIGHT

    def on_bye(self, f: Row, _: Tails) -> None:
        self.cut()
        for s in sorted(self.live):
            self.finish(self.live[s], f["at_ns"], FinishReason.UNKNOWN.code, {})

    def check_lost(self, f: Row) -> None:
        i = f["iteration_id"]
        if self.check_id is None or i < self.check_id:
            return
        self.check_id, self.check_step = i + self.check_step, 2 * self.check_step
        heard = [s for s, q in self.live.items() if not q.suspect]
        if len(heard) == f["running"] + f["waiting"]:
            self.check_id = None
            for s in sorted(s for s, q in self.live.items() if q.suspect):
                self.live[s].broken = True
                self.finish(self.live[s], f["at_ns"], FinishReason.UNKNOWN.code, {})

    def write_iteration(self, i: int) -> None:
        b = self.flight.pop(i)
        self.rows["iterations"].append(
            {
                "iteration_id": i,
                "completion_index": b.get("k"),
                "unix_ns": b.get("unix", b["sched_unix"]),
                "scheduled_at_ns": b["at_ns"],
                "completed_at_ns": b.get("c"),
                "interval_ns": b.get("interval"),
                "host_ns": b.get("host"),
                "exec_ns": b.get("exec"),
                "idle_ns": b.get("idle_ns"),
                "phase": phase(b),
                "recomputed_tokens": b.get("recomputed"),
                "output_tokens": b.get("output"),
                "prefill_members": b["n_prefill"],
                "decode_members": b["n_decode"],
                "decode_gap_members": b.get("gap_members"),
                "decode_context_tokens": b.get("decode_ctx"),
                "prefill_context_product": b.get("product"),
                "kv_waste_tokens": b.get("waste"),
                "kv_context_tokens": b.get("context"),
                "observer_ns": b["observer"],
                "dummy": int(b["flags"] & r.DUMMY != 0),
            }
        )

    def count_iteration(self, b: Row) -> None:
        self.count("iterations", 1, list(Phase)[phase(b) - 1].value)
        self.count("scheduled_tokens", b["prefill_tokens"], "prefill")
        self.count("scheduled_tokens", b["decode_tokens"], "decode")
        self.count("draft_tokens", b["draft_tokens"])
        self.count("member_steps", b["n_decode"] + b["n_prefill"])
        self.count("output_tokens", b["output"] or 0)
        self.count("recomputed_tokens", b["recomputed"] or 0)
        self.count("host_seconds", b["host"] or 0)
        self.count("exec_seconds", b["exec"] or 0)
        self.count("idle_seconds", b["idle_ns"] or 0)

    def on_empty(self, f: Row, _: Tails) -> None:
        self.count("empty_schedules", f["schedules"])


def phase(b: Row) -> int:
    kinds = (b["prefill_tokens"] > 0, b["decode_tokens"] > 0)
    return {(1, 0): 1, (0, 1): 2, (1, 1): 3, (0, 0): 4}[kinds]


def word(code: int) -> str:
    return list(DeferralReason)[code - 1].value
