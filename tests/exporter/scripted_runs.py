"""Scripted runs, folded: what outputs are fed with in truth."""

from __future__ import annotations

from typing import Any

from tests.support.records import Script

from batchscope.exporter.fold import RingFold
from batchscope.exporter.views import EngineView, labels
from batchscope.schemas.slo import Slo

MS = 1_000_000
TRACE_HI, TRACE_LO, PARENT = 0xA1, 0xFEDCBA9876543210, 0xFFFFFFFFFFFFFFFF


def one_request() -> Script:
    """10 prompt tokens in chunks of 4, then 3 decodes: an iteration of 9 ms every 10 ms."""
    script = Script(engine="mini-0", block_tokens=16)
    script.arrived(1, prompt=10, at=0, trace_hi=TRACE_HI, trace_lo=TRACE_LO, parent_span=PARENT)
    for i, (start, tokens) in enumerate([(0, 4), (4, 4), (8, 2)]):
        script.scheduled(at=(10 * i + 1) * MS, prefill=[(1, start, tokens)], budget=4)
        script.completed(at=10 * (i + 1) * MS, emitted={} if i == 2 else {1: 0})
    for i in range(3, 6):
        script.scheduled(at=(10 * i + 1) * MS, decode=[1], budget=4)
        script.completed(at=10 * (i + 1) * MS)
    script.finished(1, at=60 * MS, output=4)
    return script.bye(at=61 * MS)


def rich(engine: str = "mini-0") -> Script:
    """Everything that a counter or gauge can be made of, at least once."""
    config = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    script = Script(engine=engine, block_tokens=16, config=config)
    script.arrived(1, prompt=40, at=0).arrived(2, prompt=40, at=0).arrived(3, prompt=9, at=1 * MS)
    script.scheduled(
        at=2 * MS,
        prefill=[(1, 8, 32)],
        budget=32,
        waiting=2,
        deferred=[(1, "kv_blocks", "head"), (1, "kv_blocks", "behind")],
        stop="kv_blocks",
        head=2,
        kv=(10, 3, 1),
        schedule_ns=MS,
        observer_ns=9_000,
    )
    script.completed(at=10 * MS)
    script.scheduled(
        at=11 * MS, decode=[1], prefill=[(2, 0, 30)], kv=(10, 5, 1), observer_ns=9_000, budget=32
    )
    script.completed(at=20 * MS, emitted={2: 0})
    script.preempted(2, at=21 * MS, lost=30)
    script.scheduled(
        at=22 * MS, drafts={1: 3}, decode=[1], kv=(10, 5, 1), observer_ns=9_000, budget=32
    )
    script.completed(at=30 * MS, emitted={1: 2})
    script.resumed(2, at=31 * MS, target=40)
    script.scheduled(at=32 * MS, prefill=[(2, 0, 32)], decode=[1], observer_ns=9_000, budget=64)
    script.completed(at=40 * MS, emitted={2: 0})
    script.scheduled(at=41 * MS, prefill=[(2, 32, 8)], decode=[1], observer_ns=9_000, budget=64)
    script.completed(at=400 * MS)
    script.finished(1, at=400 * MS, output=6).finished(2, at=401 * MS, output=1, reason="abort")
    script.finished(3, at=402 * MS, output=0, reason="shed")
    script.empty(at=500 * MS, first=450 * MS, schedules=3)
    script.arrived(4, prompt=5, at=600 * MS)
    script.scheduled(at=601 * MS, prefill=[(4, 0, 5)], kv=(10, 1, 0), observer_ns=9_000, budget=64)
    script.completed(at=610 * MS)
    return script.notice(at=611 * MS)


def fold(script: Script) -> tuple[RingFold, dict[str, Any]]:
    folded = RingFold(script.hello, script.ring_id, slo=Slo.parse("ttft<=2s,tbt_p99<=50ms"))
    return folded, folded.fold(script.chunk())


def view(script: Script, folded: RingFold) -> EngineView:
    about = script.hello
    return EngineView(labels(about), about, "live", folded.totals, folded.gauges)
