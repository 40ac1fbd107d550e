"""The other half's judgement: what the exporter folds from a hooked engine's ring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.adapters.drivers import MiniDriver

from batchscope.adapters import mini
from batchscope.exporter.fold import RingFold
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.ring import RingReader, list_rings

RING_BYTES = 1 << 20


def folded(
    driver: MiniDriver, folder: Path, *, requests: int, reads: Callable[[int], bool]
) -> tuple[RingFold, dict[str, Any]]:
    """Fold of a run, and the engine's own totals; the ring is read after steps that `reads`."""
    engine = driver.engine()
    env = {
        "BATCHSCOPE": "1",
        "BATCHSCOPE_DIR": str(folder),
        "BATCHSCOPE_RING_BYTES": str(RING_BYTES),
        "BATCHSCOPE_OVERHEAD": "0",
    }
    handle = mini.attach(engine, env)
    reader = RingReader(list_rings(folder)[0])
    fold = RingFold(reader.hello, reader.ring_id, slo=None)

    def read() -> None:
        while (raw := reader.poll()) is not None:
            seq, byte_pos = reader.position
            fold.fold(chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=byte_pos))

    def every_step(step: int) -> None:
        if reads(step):
            read()

    _, totals = driver.run(engine, requests=requests, every_step=every_step)
    handle.detach()
    read()
    return fold, totals


def counted(fold: RingFold, name: str) -> int:
    return sum(value for (own, _), value in fold.totals.counters.items() if own == name)


def test_the_fold_of_a_ring_equals_the_engines_own_totals(tmp_path: Path) -> None:
    tight = MiniDriver(num_blocks=60, max_num_seqs=24, max_num_batched_tokens=128)
    fold, totals = folded(tight, tmp_path, requests=400, reads=lambda step: step % 50 == 0)
    counters = fold.totals.counters
    assert counted(fold, "audit_violations") == 0 < counted(fold, "audit_checks")
    assert counted(fold, "iterations") == totals["iterations"]
    assert counted(fold, "member_steps") == totals["member_steps"]
    assert counted(fold, "preemptions") == totals["preemptions"] > 0
    assert counted(fold, "deferrals") == sum(totals["deferrals"].values()) > 0
    tokens = {
        "prefill": counters["scheduled_tokens", ("prefill",)],
        "decode": counters["scheduled_tokens", ("decode",)],
        "output": counted(fold, "output_tokens"),
        "cached": counted(fold, "cached_tokens"),
        "recomputed": counted(fold, "recomputed_tokens"),
    }
    assert tokens == totals["tokens"]
    assert counted(fold, "requests_arrived") == totals["requests"]["arrived"]
    assert counters["requests_finished", ("length",)] == totals["requests"]["finished"]
    assert counters["requests_finished", ("abort",)] == totals["requests"]["aborted"] == 1


def test_a_reader_that_comes_too_late_loses_exactly_what_was_overwritten(tmp_path: Path) -> None:
    roomy = MiniDriver(num_blocks=1000, max_num_seqs=64, max_num_batched_tokens=256)
    fold, totals = folded(roomy, tmp_path, requests=6000, reads=lambda step: step < 50)
    lost = counted(fold, "lost_iterations")
    assert 0 < lost < totals["iterations"]
    assert counted(fold, "iterations") + lost == totals["iterations"]
    assert counted(fold, "audit_violations") == 0 < counted(fold, "audit_checks")
