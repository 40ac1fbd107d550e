"""What the halves of a split say of requests, hops and stand-stills, record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, read

from batchscope.adapters import mini
from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.hop import Hop
from batchscope.engine.sequence import Sequence
from batchscope.engine.virtual import VirtualClock
from batchscope.exporter.fold import RingFold
from batchscope.exporter.tail import chunk_from
from batchscope.schemas.reasons import DeferralReason, Direction, FinishReason, Phase, Position
from batchscope.schemas.ring import RingReader, list_rings

TRANSFER = DeferralReason.TRANSFER.code


class Half:
    """A watched engine of a role, in virtual time."""

    def __init__(self, folder: Path, role: str, **config: Any) -> None:
        self.clock = VirtualClock(1_000_000)
        settings: dict[str, Any] = {"num_blocks": 10, "max_model_len": 160, "unaccepted_ratio": 0.2}
        shape = EngineConfig(runner="cost", role=role, **(settings | config))  # type: ignore[arg-type]
        runner = CostRunner(clock=self.clock, sleep=self.clock.sleep)
        self.engine = Engine(shape, runner=runner, clock=self.clock)
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
        env |= {"BATCHSCOPE_RING_BYTES": "1048576"}
        self._handle = mini.attach(self.engine, env, clock=self.clock, wall=self.clock)
        self._folder = folder

    def told(self) -> list[Seen]:
        """Its records, all of them."""
        self._handle.detach()
        return read(self._folder)

    def folded(self) -> tuple[dict[str, Any], RingFold]:
        """(table -> its columns, joined; the fold)."""
        reader = RingReader(list_rings(self._folder)[0])
        fold = RingFold(reader.hello, reader.ring_id, slo=None)
        tables: dict[str, Any] = {}
        while (raw := reader.poll()) is not None:
            seq, at = reader.position
            chunk = chunk_from(raw, reader.ring_id, reader.ring_uuid, seq=seq, byte_pos=at)
            for table, columns in fold.fold(chunk).items():
                for name, values in columns.items():
                    tables.setdefault(table, {}).setdefault(name, []).extend(list(values))
        return tables, fold


@pytest.fixture
def stood(tmp_path: Path) -> Half:
    """A prefill half whose second prompt had to wait for the pages of the first."""
    half = Half(tmp_path, "prefill")
    engine, scheduler = half.engine, half.engine.scheduler
    first = engine.submit("first", [1] * 100, 1, keeps_kv=True)
    engine.step()
    engine.submit("second", [2] * 40, 1)
    half.clock.sleep(0.005)
    engine.step()
    half.clock.sleep(0.020)
    end_ns = half.clock()
    hop = Hop("decode", incoming=False, start_ns=end_ns - 24_000_000, end_ns=end_ns, blocks=7,
              nbytes=7_000, wait_ns=19_000_000, handshake_ns=2_000_000)  # fmt: skip
    scheduler.transferred(first, hop)
    scheduler.let_go("first")
    engine.step()
    return half


def test_pages_that_nobody_takes_are_the_reason_that_the_next_prompt_is_told_to_wait_for(
    stood: Half,
) -> None:
    decisions = [seen for seen in stood.told() if seen.name == "scheduled"]
    assert [len(seen["prefill"]) for seen in decisions] == [1, 0, 1]
    held = decisions[1]
    assert (held["admission_stop"], held["head_serial"]) == (TRANSFER, 2)
    assert held["deferred"] == [(1, TRANSFER, Position.HEAD.code)]
    assert (held["running"], held["waiting"], held["kv_used_blocks"]) == (0, 1, 7)
    tables, fold = stood.folded()
    assert [int(word) for word in tables["iterations"]["phase"]][1] == Phase.EMPTY.code
    (wait,) = (ns for ns in tables["waits"]["wait_ns"])
    assert (int(wait), int(tables["waits"]["reason"][0])) == (20_000_000, TRANSFER)
    assert fold.totals.counters.get(("audit_violations", ("live_requests",)), 0) == 0


def test_a_hop_is_told_of_the_request_that_has_left(stood: Half) -> None:
    told = stood.told()
    names = [seen.name for seen in told]
    assert names.index("finished") < names.index("transfer")
    (hop,) = (seen for seen in told if seen.name == "transfer")
    assert (hop["serial"], hop["direction"], hop.flags) == (1, Direction.OUT.code, 0)
    assert (hop["blocks"], hop["bytes"]) == (7, 7_000)
    assert (hop["wait_ns"], hop["handshake_ns"]) == (19_000_000, 2_000_000)
    assert hop["at_ns"] - hop["start_ns"] == 24_000_000
    first = next(seen for seen in told if seen.name == "finished")
    assert (first["reason"], first["output_tokens"]) == (FinishReason.LENGTH.code, 1)


def test_a_hop_that_failed_has_no_figures(tmp_path: Path) -> None:
    half = Half(tmp_path, "prefill")
    first = half.engine.submit("first", [1] * 20, 1, keeps_kv=True)
    half.engine.step()
    half.engine.scheduler.transferred(
        first, Hop("decode", incoming=False, start_ns=5, end_ns=9, failed=True)
    )
    (hop,) = (seen for seen in half.told() if seen.name == "transfer")
    absent = [hop[name] for name in ("blocks", "bytes", "wait_ns", "handshake_ns")]
    assert (hop.flags, absent) == (1, [None] * 4)


def test_the_decode_half_tells_its_own_tokens_also_after_a_preemption(tmp_path: Path) -> None:
    half = Half(tmp_path, "decode")
    scheduler = half.engine.scheduler
    seq = Sequence("a", [3] * 40, 10, arrival_ns=half.clock(), given=1)
    seq.output.append(7)
    assert scheduler.reserve(seq)
    scheduler.receive(seq)
    half.engine.step()
    scheduler.preempt(seq)
    while half.engine.has_work():
        half.engine.step()
    told = {seen.name: seen for seen in half.told()}
    assert (told["arrived"]["prompt_tokens"], told["arrived"]["max_tokens"]) == (40, 9)
    assert told["finished"]["output_tokens"] == 9
    tables, fold = half.folded()
    assert [int(n) for n in tables["requests"]["output_tokens"]] == [9]
    assert half.engine.totals.recomputed == 42 - 32, "two blocks were still in the cache"
    assert [int(n) for n in tables["requests"]["recomputed_tokens"]] == [10]
    broken = {
        law: n for (name, law), n in fold.totals.counters.items() if name == "audit_violations"
    }
    assert not any(broken.values())
