"""Mistakes that other tools shipped, each as a small story with exact numbers."""

import json
from typing import Any

import numpy as np
import pytest
from tests.support.records import UNIX_NS, Script

from batchscope.exporter import tables
from batchscope.exporter.fold import FOLD_VERSION, RingFold
from batchscope.exporter.rows import Rows, to_arrow
from batchscope.exporter.tail import Chunk
from batchscope.schemas.reasons import FinishReason, Phase, Verdict
from batchscope.schemas.records import DUMMY, NO_MEMBERS, NULL64
from batchscope.schemas.slo import Slo

SLO = Slo("x", (("tbt_p99", 20), ("ttft", 50)), 1)


def folded(script: Script, slo: Slo | None = None) -> tuple[RingFold, Rows]:
    fold = RingFold(script.hello, script.ring_id, slo=slo)
    return fold, fold.fold(script.bye(at=10**6).chunk())


def known(column: Any) -> list[int | None]:
    return [None if value == NULL64 else value for value in column.tolist()]


def one_request(**finish: Any) -> Script:
    s = Script(block_tokens=4)
    s.arrived(1, prompt=3, at=0)
    s.scheduled(at=10, prefill=[(1, 0, 3)]).completed(at=20)
    s.scheduled(at=21, decode=[1]).completed(at=30)
    return s.finished(1, at=31, **{"output": 2, **finish})


def test_ten_tokens_in_chunks_of_four_are_four_four_two() -> None:
    s = Script().arrived(1, prompt=10, at=0)
    for start, n in ((0, 4), (4, 4), (8, 2)):
        s.scheduled(at=start, prefill=[(1, start, n)], budget=4)
        s.completed(at=start + 3, emitted={1: 0} if start < 8 else None)
    _, rows = folded(s)
    assert rows["iterations"]["prefill_tokens"].tolist() == [4, 4, 2]
    assert rows["iterations"]["output_tokens"].tolist() == [0, 0, 1]


def test_an_interval_is_from_completion_to_completion_also_with_batches_in_flight() -> None:
    s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)])
    s.scheduled(at=2, decode=[1]).completed(at=10, iteration=1)
    s.scheduled(at=11, decode=[1]).completed(at=20, iteration=2).completed(at=31, iteration=3)
    _, rows = folded(s)
    assert known(rows["iterations"]["interval_ns"]) == [None, 10, 11]
    assert known(rows["iterations"]["host_ns"]) == [None, 0, 0]


def test_recompute_after_preemption_is_prefill_also_of_generated_tokens() -> None:
    s = Script(block_tokens=4).arrived(1, prompt=4, at=0)
    s.scheduled(at=1, prefill=[(1, 0, 4)]).completed(at=2)
    s.scheduled(at=3, decode=[1]).completed(at=4)
    s.preempted(1, at=5, lost=5).resumed(1, at=6, target=6)
    s.scheduled(at=7, prefill=[(1, 0, 6)]).completed(at=8)
    s.finished(1, at=9, output=3)
    fold, rows = folded(s)
    assert rows["iterations"]["recomputed_tokens"].tolist() == [0, 0, 6]
    assert rows["requests"]["recomputed_tokens"].tolist() == [6]
    assert rows["requests"]["decode_tokens"].tolist() == [1]
    assert rows["gaps"]["preempted"].tolist() == [1]
    assert not fold.open_rows()["audit"]["violations"].any()


def test_a_step_of_the_wall_clock_moves_no_duration() -> None:
    s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)]).completed(at=10)
    s.segment(at=11, unix_ns=UNIX_NS - 10**12)
    s.scheduled(at=12, decode=[1]).completed(at=20).finished(1, at=21, output=2)
    _, rows = folded(s)
    assert rows["requests"]["e2e_ns"].tolist() == [20]
    assert known(rows["iterations"]["interval_ns"]) == [None, 10]
    assert np.diff(rows["iterations"]["unix_ns"]).tolist() == [10 - 10**12 - 11]


def test_a_clock_that_runs_back_gives_zero_and_a_count() -> None:
    s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)]).completed(at=10)
    s.scheduled(at=5, decode=[1]).completed(at=7)
    fold, rows = folded(s)
    assert known(rows["iterations"]["interval_ns"]) == [None, 0]
    assert fold.totals.counters["clamped_durations", ()] > 0


def test_a_request_that_is_queued_twice_arrives_once_and_never_waits_less_than_nothing() -> None:
    s = Script().arrived(1, prompt=1, at=5).arrived(1, prompt=1, at=50)
    s.scheduled(at=10, prefill=[(1, 0, 1)]).completed(at=20).finished(1, at=21, output=1)
    fold, rows = folded(s)
    assert fold.totals.counters["requests_arrived", ()] == 1
    assert rows["requests"]["queue_ns"].tolist() == [5]


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [("stop", "met"), ("abort", "aborted"), ("error", "failed"), ("shed", "shed")],
)
def test_every_end_has_its_own_verdict_and_a_cancel_is_no_success(
    reason: str, verdict: str
) -> None:
    fold, rows = folded(one_request(reason=reason), SLO)
    assert rows["requests"]["finish_reason"].tolist() == [FinishReason(reason).code]
    assert rows["requests"]["verdict"].tolist() == [Verdict(verdict).code]
    assert fold.totals.counters["slo_requests", ("x", verdict)] == 1


def test_one_token_leaves_time_between_tokens_undetermined_unless_it_came_late() -> None:
    for at, verdict in ((20, Verdict.UNDETERMINED), (90, Verdict.MISSED)):
        s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)])
        _, rows = folded(s.completed(at=at).finished(1, at=at + 1, output=1), SLO)
        assert rows["requests"]["verdict"].tolist() == [verdict.code]


def test_time_without_a_live_request_is_idle_and_in_no_interval() -> None:
    s = one_request()
    s.arrived(2, prompt=1, at=1031).scheduled(at=1041, prefill=[(2, 0, 1)]).completed(at=1050)
    _, rows = folded(s)
    last = {name: rows["iterations"][f"{name}_ns"][-1] for name in ("idle", "host", "exec")}
    assert last == {"idle": 1000, "host": 11, "exec": 9}


def test_dummy_steps_are_empty_iterations_whose_time_is_real() -> None:
    s = one_request()
    s.scheduled(at=40, flags=DUMMY).completed(at=50)
    _, rows = folded(s)
    assert rows["iterations"]["phase"].tolist()[-1] == Phase.EMPTY.code
    assert rows["iterations"]["dummy"].tolist() == [0, 0, 1]


def test_several_tokens_at_once_are_one_gap_and_gaps_of_nothing() -> None:
    s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)]).completed(at=10)
    s.scheduled(at=11, decode=[1], drafts={1: 3}).completed(at=30, emitted={1: 3})
    fold, rows = folded(s.finished(1, at=31, output=4))
    assert rows["gaps"]["gap_ns"].tolist() == [20]
    assert rows["gaps"]["tokens"].tolist() == [3]
    assert rows["requests"]["tbt_p50_ns"].tolist() == [0]
    assert rows["requests"]["tbt_max_ns"].tolist() == [20]
    assert fold.totals.histograms["time_between_tokens_seconds", ()].counts.sum() == 3


def test_identical_steps_are_one_row_cut_every_4096() -> None:
    s = Script().arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)]).completed(at=2)
    for i in range(5000):
        s.scheduled(at=3 + 2 * i, **({"decode": [1]} if i == 0 else {"same": 1}))
        s.completed(at=4 + 2 * i)
    _, rows = folded(s)
    assert rows["runs"]["n_iterations"].tolist() == [1, 4096, 904]
    assert rows["runs"]["context_first"].tolist() == [0, 1, 4097]
    assert rows["runs"]["first_iteration"].tolist() == [1, 2, 4098]


def test_what_a_loss_hides_is_unknown_and_not_zero() -> None:
    s = Script(block_tokens=4).arrived(1, prompt=4, at=0)
    s.scheduled(at=1, prefill=[(1, 0, 4)]).completed(at=5)
    s.loss(records=4, iterations=2).segment(at=20)
    s.scheduled(at=21, decode=[1]).completed(at=25).finished(1, at=26, output=4)
    _, rows = folded(s)
    assert known(rows["iterations"]["interval_ns"]) == [None, None]
    assert known(rows["iterations"]["kv_waste_tokens"]) == [0, None]
    request = {name: column[0] for name, column in rows["requests"].items()}
    assert request["broken"] == 1
    assert request["ttft_ns"] == 5
    assert request["tbt_max_ns"] == request["tpot_ns"] == NULL64


def test_all_columns_of_all_tables_fit_their_declaration() -> None:
    s = one_request(engine_e2e_ns=40)
    s.string(1, "seam").notice(at=40, seam=1, text="x").transfer(1, start=1, at=2)
    s.arrived(2, prompt=3, at=41).blocked(2, at=42, reason="grammar")
    s.scheduled(at=43, waiting=1, stop="kv_blocks", deferred=[(1, "kv_blocks", "head")])
    s.unblocked(2, at=44, reason="grammar").scheduled(at=45, prefill=[(2, 0, 3)]).completed(at=46)
    s.scheduled(at=47, decode=[2]).preempted(2, at=48).loss(records=1, iterations=None)
    fold = RingFold(s.hello, s.ring_id, slo=SLO)
    rows = {**fold.fold(s.chunk()), **fold.open_rows()}
    rows |= {name: rows.get(name) or table for name, table in fold.fold(one_more(s)).items()}
    for name in (
        *("iterations", "deferrals", "runs", "requests", "waits", "preemptions", "blocked"),
        *("transfers", "notices", "losses", "audit", "runs_open", "requests_open"),
    ):
        made = to_arrow(name, rows[name])
        assert made.column_names == [c for c in tables.columns(name) if c != "batch_id"], name


def one_more(s: Script) -> Chunk:
    n = len(s)
    s.segment(at=50).live(2, prompt=3, at=51, computed=3, output=1, phase="decode")
    s.scheduled(at=52, decode=[2]).completed(at=53).finished(2, at=54, output=2)
    return s.chunks(n)[1]


def test_a_dump_is_of_one_version_and_cheap() -> None:
    fold, _ = folded(one_request(), SLO)
    blob = fold.dump()
    assert RingFold.load(blob).dump() == blob
    assert RingFold.load(blob).slo == SLO
    other = (FOLD_VERSION + 1).to_bytes(4, "little") + blob[4:]
    with pytest.raises(ValueError, match="fold version"):
        RingFold.load(other)


def test_ids_in_plain_words_stay_plain() -> None:
    s = Script().arrived(1, prompt=1, at=0, key_text=b"req-1", key=None)
    s.scheduled(at=1, prefill=[(1, 0, 1)]).completed(at=2).finished(1, at=3, output=1)
    _, rows = folded(s)
    assert rows["requests"]["request_key"] == ["req-1"]
    assert json.dumps(rows["requests"]["external_key"]) == "[null]"


def test_ids_in_plain_words_also_of_who_was_a_member_before_it_was_announced() -> None:
    s = Script().scheduled(at=1, decode=[1, 2]).completed(at=2)
    s.live(1, prompt=1, at=3, computed=1, output=1, phase="decode", key_text=b"req-1")
    s.scheduled(at=4, decode=[1, 2]).completed(at=5)
    fold, rows = folded(s)
    keys = dict(zip(rows["requests"]["serial"], rows["requests"]["request_key"], strict=True))
    assert keys == {1: "req-1", 2: None}
    assert b"req-1" not in fold.dump(), "whoever left is forgotten, however it left"


@pytest.mark.parametrize("announced", [False, True])
def test_what_requests_hold_is_unknown_where_members_are_left_out(announced: bool) -> None:
    s = Script(block_tokens=4)
    if announced:
        s.arrived(9, prompt=5, at=1)
    for at in (10, 30, 50):
        s.scheduled(at=at, flags=NO_MEMBERS, n_decode=2, decode_tokens=2, running=2)
        s.completed(at=at + 10)
    fold = RingFold(s.hello, s.ring_id, slo=None)
    fold.fold(s.chunk())
    assert ("kv_waste_tokens", ()) not in fold.gauges
    _, rows = folded(s)
    assert known(rows["iterations"]["kv_context_tokens"]) == [None] * 3
    assert known(rows["iterations"]["kv_waste_tokens"]) == [None] * 3


def test_who_left_the_queue_is_deferred_no_longer_however_long_the_engine_idles() -> None:
    s = Script().arrived(1, prompt=4, at=0).arrived(2, prompt=4, at=0).arrived(3, prompt=4, at=0)
    s.scheduled(at=10, prefill=[(1, 0, 4)], deferred=[(2, "max_requests")], stop="max_requests")
    s.completed(at=20)
    for serial in (1, 2, 3):
        s.finished(serial, at=30, output=0, reason="abort")
    s.arrived(4, prompt=1, at=10**12).scheduled(at=10**12 + 5, prefill=[(4, 0, 1)])
    fold = RingFold(s.hello, s.ring_id, slo=None)
    rows = fold.fold(s.chunk())
    assert fold.totals.counters["deferred_seconds", ("max_requests",)] == 2 * (30 - 10)
    assert rows["waits"]["wait_ns"].tolist() == [20, 20]


def test_a_request_that_still_waits_was_left_out_by_every_decision_since() -> None:
    s = Script().arrived(1, prompt=4, at=0).arrived(2, prompt=4, at=0)
    for at in (10, 20, 30):
        s.scheduled(at=at, **({"prefill": [(1, 0, 4)]} if at == 10 else {"decode": [1]}))
        s.completed(at=at + 5)
    fold = RingFold(s.hello, s.ring_id, slo=None)
    fold.fold(s.chunk())
    shown = fold.open_rows()["requests_open"]
    assert shown["serial"].tolist() == [1, 2]
    assert shown["deferrals"].tolist() == [0, 3]


@pytest.mark.parametrize("empties", range(20))
def test_what_comes_late_of_requests_that_ended_is_booked_to_nobody_else(empties: int) -> None:
    s = Script().arrived(1, prompt=1, at=0).arrived(2, prompt=1, at=0)
    s.scheduled(at=1, prefill=[(1, 0, 1), (2, 0, 1)]).completed(at=2)
    s.scheduled(at=3, decode=[1, 2]).scheduled(at=4, decode=[1, 2]).completed(at=5, iteration=2)
    s.finished(1, at=6, output=2).finished(2, at=6, output=2)
    for at in range(empties):
        s.empty(at=7 + at, first=7 + at, schedules=1)
    s.completed(at=30, iteration=3, emitted={1: 0, 2: 0})
    fold, rows = folded(s)
    assert rows["requests"]["output_tokens"].tolist() == [2, 2]
    assert fold.totals.counters["audit_violations", ("tokens_emitted",)] == 0
