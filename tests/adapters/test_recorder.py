"""The writer's middle layer over a real ring, with requests that are nothing but names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, records

from batchscope.adapters.budget import WINDOW, Budget, budget_from
from batchscope.adapters.edges import EDGES_PER_STEP
from batchscope.adapters.facts import Decision, Progress, Request, Traits
from batchscope.adapters.hello import config_hash, without_secrets
from batchscope.adapters.labels import MOST_LABELS
from batchscope.adapters.naming import Naming
from batchscope.adapters.recorder import Recorder
from batchscope.adapters.steady import IN_FLIGHT
from batchscope.schemas import records as r
from batchscope.schemas.request_keys import make_salt, read_salt, request_key
from batchscope.schemas.ring import LEVEL_ITERATIONS, LEVEL_MEMBERS, RingReader, RingWriter

SIXTY_FOUR_KIB_SEGMENTS = 1 << 20
STATE = Progress(5, 1, 0, 0, 2)


class Tape:
    """A recorder and what it wrote."""

    def __init__(self, folder: Path, *, level: int = 2, tenant: str | None = None) -> None:
        self.writer = RingWriter(folder, {}, size=SIXTY_FOUR_KIB_SEGMENTS)
        while not self.writer.grow():
            pass
        self.reader = RingReader(self.writer.path)
        self.tenants: dict[str, str] = {}
        traits = Traits(
            id=str,
            request=lambda request: Request(5, tenant=self.tenants.get(request, tenant)),
            progress=lambda request: STATE,
        )
        self.recorder = Recorder(self.writer, traits, naming=Naming("plain", b"salt"), level=level)

    def seen(self, *kinds: str) -> list[Seen]:
        found = list(records(self.reader))
        return [record for record in found if not kinds or record.name in kinds]


@pytest.fixture
def tape(tmp_path: Path) -> Tape:
    return Tape(tmp_path / "rings")


def decision(decodes: list[str], *, at_ns: int = 0, **fields: Any) -> Decision:
    given = {"prefill_tokens": 0, "decode_tokens": len(decodes), "running": 0, "waiting": 0}
    return Decision(at_ns=at_ns, schedule_ns=1, decodes=decodes, **{**given, **fields})


def test_unchanged_decodes_are_named_once(tape: Tape) -> None:
    for members in (["a", "b"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c"]):
        tape.recorder.scheduled(object(), decision(members))
    flags = [(record.flags, record["decode"]) for record in tape.seen("scheduled")]
    assert flags == [(0, [1, 2]), (r.SAME_DECODES, []), (0, [1, 2, 3]), (r.SAME_DECODES, [])]


def go_on(tape: Tape, members: list[str], *, at_ns: int = 5, **fields: Any) -> bool:
    """As the adapters do."""
    d = decision(members, at_ns=at_ns, running=len(members), kv_total_blocks=9, **fields)
    queue = (d.waiting, d.admission_stop, d.head, d.deferred)
    pool = (d.kv_total_blocks, d.kv_used_blocks, d.kv_evictable_blocks)
    recorder, n = tape.recorder, len(members)
    known = members == recorder.decodes.settled or recorder.level < LEVEL_MEMBERS
    return known and recorder.went_on(tape, n, d.at_ns, d.schedule_ns, d.budget_tokens, queue, pool)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"budget_tokens": 64, "kv_used_blocks": 4, "kv_evictable_blocks": 2},
        {"waiting": 3, "admission_stop": 2, "deferred": [(3, 2, 1)]},
        {"waiting": 2, "admission_stop": 3, "deferred": [(1, 3, 2), (1, 3, 3)], "head": "w"},
    ],
)
@pytest.mark.parametrize("level", [LEVEL_ITERATIONS, LEVEL_MEMBERS])
def test_what_went_on_and_came_back_is_written_as_any_other(
    tmp_path: Path, fields: dict[str, Any], level: int
) -> None:
    members = ["a", "b"]
    short, long = (Tape(tmp_path / name, level=level) for name in ("short", "long"))
    for tape in (short, long):
        tape.recorder.scheduled("first", decision(members))
        tape.recorder.observer_ns = 77
    assert go_on(short, members, **fields)
    assert short.recorder.came_back(short, 8)
    given = {"at_ns": 5, "running": 2, "kv_total_blocks": 9, **fields}
    long.recorder.scheduled(long, decision(members, **given))
    long.recorder.completed(long, at_ns=8)
    told = [
        [(s.name, s.flags, s.fields, s.tails) for s in tape.seen()[1:]] for tape in (short, long)
    ]
    assert told[0] == told[1]
    assert [one[0] for one in told[0]][-2:] == ["scheduled", "completed"]
    ends = [(t.writer.left, t.writer.seq, t.writer.iteration_id) for t in (short, long)]
    assert ends[0] == ends[1]


def unsettled(tape: Tape) -> None:
    """The level forgets who was told."""
    tape.recorder.set_level(2)


def ended(tape: Tape) -> None:
    tape.recorder.finished("b", at_ns=3, reason=1, output_tokens=1)


def skipped(tape: Tape) -> None:
    tape.recorder.blocked("w", at_ns=3, reason=1)


def emptied(tape: Tape) -> None:
    tape.recorder.scheduled("empty", decision([]))
    tape.recorder.scheduled("empty", decision([], at_ns=1))


def segment_is_full(tape: Tape) -> None:
    while tape.writer.left > 4000:
        tape.recorder.arrived("c", at_ns=1)


def new_segment(tape: Tape) -> None:
    tape.writer.reserve(tape.writer.left + 1)


@pytest.mark.parametrize(
    "happens", [unsettled, ended, skipped, emptied, segment_is_full, new_segment]
)
def test_what_did_more_than_go_on_is_left_to_the_whole_account(tape: Tape, happens: Any) -> None:
    tape.recorder.scheduled("first", decision(["a", "b"]))
    assert go_on(tape, ["a", "b"])
    assert not go_on(tape, ["b", "a"])
    assert not go_on(tape, ["a", "b", "c"])
    happens(tape)
    before = (tape.writer.seq, tape.writer.left, tape.writer.iteration_id)
    assert not go_on(tape, ["a", "b"])
    assert (tape.writer.seq, tape.writer.left, tape.writer.iteration_id) == before


def test_a_batch_that_was_never_seen_or_from_which_somebody_left_does_not_just_come_back(
    tape: Tape,
) -> None:
    tape.recorder.scheduled("first", decision(["a", "b"]))
    assert not tape.recorder.came_back("never", 5)
    tape.recorder.holding = True
    tape.recorder.finished("a", at_ns=4, reason=1, output_tokens=1)
    assert not tape.recorder.came_back("first", 5)
    tape.recorder.completed("first", at_ns=5)
    assert [s.name for s in tape.seen()][-2:] == ["completed", "finished"]


def test_members_that_are_more_news_than_a_segment_takes_are_named_all_the_same(
    tape: Tape,
) -> None:
    for n in range(300, 600, 3):
        fresh = [(f"{n}-{i}", 0, 1) for i in range(n)]
        tape.recorder.scheduled(object(), decision([], prefill=fresh, prefill_tokens=n))
        (seen,) = tape.seen("scheduled")
        assert len(seen["prefill"]) == n
    assert tape.reader.rejected == 0


def test_a_delivery_to_more_than_a_record_takes_is_counted_and_names_nobody(tape: Tape) -> None:
    some, crowd = ["a", "b"], [str(n) for n in range(2100)]  # of 8 bytes each, in 16 KiB
    for who in (some, crowd):
        tape.recorder.delivered(who, [1] * len(who), at_ns=2, ready_at_ns=1)
    named, counted = tape.seen("delivered")
    assert (named.flags, named["n_tokens"], len(named["tokens"])) == (0, 2, 2)
    assert (counted.flags, counted["n_tokens"]) == (r.NO_MEMBERS, 2100)


def test_a_request_that_left_is_out_of_the_list_and_let_go(tape: Tape) -> None:
    tape.recorder.scheduled(object(), decision(["a", "b", "c"]))
    tape.recorder.finished("b", at_ns=1, reason=1, output_tokens=1)
    tape.recorder.scheduled(object(), decision(["a", "c", "d"]))
    tape.recorder.scheduled(object(), decision(["d", "a", "c"]))
    decodes = [record["decode"] for record in tape.seen("scheduled")]
    assert decodes == [[1, 2, 3], [1, 3, 4], [4, 1, 3]]


def test_an_id_that_comes_back_is_a_new_request(tape: Tape) -> None:
    for _ in range(2):
        tape.recorder.arrived("a", at_ns=1)
        tape.recorder.finished("a", at_ns=2, reason=1, output_tokens=0)
    assert [s["serial"] for s in tape.seen("arrived", "finished")] == [1, 1, 2, 2]


def test_a_fault_of_ours_makes_the_next_decision_name_everybody(tape: Tape) -> None:
    tape.recorder.scheduled(object(), decision(["a", "b"]))
    tape.recorder.distrust()
    tape.recorder.scheduled(object(), decision(["a", "b"]))
    assert [record["decode"] for record in tape.seen("scheduled")] == [[1, 2], [1, 2]]


def test_ends_inside_an_update_are_written_after_its_completion(tape: Tape) -> None:
    batch = object()
    tape.recorder.scheduled(batch, decision(["a"]))
    tape.recorder.holding = True
    tape.recorder.finished("a", at_ns=3, reason=1, output_tokens=1)
    tape.recorder.completed(batch, at_ns=2)
    assert [record.name for record in tape.seen()][-2:] == ["completed", "finished"]


def test_what_was_held_is_not_lost_when_the_update_raises(tape: Tape) -> None:
    tape.recorder.scheduled(object(), decision(["a"]))
    tape.recorder.holding = True
    tape.recorder.finished("a", at_ns=3, reason=1, output_tokens=1)
    tape.recorder.scheduled(object(), decision(["b"]))
    assert [record.name for record in tape.seen("finished", "scheduled")] == [
        "scheduled",
        "finished",
        "scheduled",
    ]


def test_with_batches_in_flight_the_departed_are_remembered_until_theirs_is_done(
    tape: Tape,
) -> None:
    first, second, third = object(), object(), object()
    tape.recorder.scheduled(first, decision(["a", "b"]))
    tape.recorder.scheduled(second, decision(["a", "b"]))
    tape.recorder.holding = True
    tape.recorder.finished("a", at_ns=3, reason=1, output_tokens=1)
    tape.recorder.completed(first, at_ns=2)
    assert tape.recorder.departed == {"a": tape.recorder.in_flight(second)} == {"a": 2}
    tape.recorder.completed(second, at_ns=4, emitted=[("a", 0)])
    tape.recorder.scheduled(third, decision(["b"]))
    assert tape.recorder.departed == {}
    assert [record["emitted"] for record in tape.seen("completed")] == [[], [(1, 0)]]


def test_a_batch_never_seen_scheduled_leaves_no_record(tape: Tape) -> None:
    tape.recorder.completed(object(), at_ns=1)
    assert tape.seen("completed") == []


def test_batches_that_never_come_back_are_forgotten(tape: Tape) -> None:
    batches = [object() for _ in range(2 * IN_FLIGHT)]
    for batch in batches:
        tape.recorder.scheduled(batch, decision(["a"]))
    remembered = [batch for batch in batches if tape.recorder.in_flight(batch)]
    assert remembered == batches[IN_FLIGHT:]


def test_members_too_many_for_a_record_are_counted_only(tape: Tape) -> None:
    crowd = [f"r{i}" for i in range(5000)]
    tape.recorder.scheduled(object(), decision(crowd))
    tape.recorder.scheduled(object(), decision(crowd[:3]))
    crowded, small = tape.seen("scheduled")
    assert (crowded.flags, crowded["n_decode"], crowded["decode"]) == (r.NO_MEMBERS, 5000, [])
    assert (small.flags, len(small["decode"])) == (0, 3)


def test_a_decision_stands_alone_even_when_its_own_introductions_fill_the_segment(
    tape: Tape,
) -> None:
    names: dict[int, str] = {}
    first = True
    switches = 0
    for number in range(600):
        crowd = [(f"{number}.{i}".ljust(150 + number % 100), 0, 1) for i in range(20)]
        tape.recorder.scheduled(object(), decision(["a", "b"], prefill=crowd))
        for record in tape.seen():
            if record.name == "segment":
                names, first, switches = {}, True, switches + 1
            elif record.name == "live":
                names[record["serial"]] = record["key_text"]
            elif record.name == "scheduled":
                assert first == (not record.flags & r.SAME_DECODES)
                assert [names[serial] for serial, _, _ in record["prefill"]] == [
                    name for name, _, _ in crowd
                ]
                first = False
    assert switches > 30


def test_a_decision_names_everybody_when_a_completion_has_opened_the_segment(tape: Tape) -> None:
    for n in range(60):
        batch = object()
        tape.recorder.scheduled(batch, decision(["a", "b"]))
        tape.recorder.completed(batch, at_ns=n, emitted=[("a", 0)] * 900)
    seen = tape.seen("segment", "scheduled", "completed")
    opened = [i for i, record in enumerate(seen) if record.name == "segment"]
    assert "completed" in {seen[i + 1].name for i in opened}
    firsts = [next(s for s in seen[i:] if s.name == "scheduled") for i in opened]
    assert [first["decode"] for first in firsts] == [[1, 2]] * len(opened)


def test_live_before_a_preemption_tells_what_was_there_before_it(tape: Tape) -> None:
    before = Progress(77, 3, None, 1, 2)
    tape.recorder.preempted("a", at_ns=1, before=before, reason=3)
    live, preempted = tape.seen("live", "preempted")
    told = ("computed_tokens", "output_tokens", "cached_tokens", "preemptions", "phase")
    assert tuple(live[field] for field in told) == before
    assert preempted["lost_tokens"] == 77


def test_drafts_and_prefill_members_keep_their_rows(tape: Tape) -> None:
    facts = decision(["a"], prefill=[("p", 0, 7)], drafts=[("a", 4)], deferred=[(2, 3, 1)])
    tape.recorder.scheduled(object(), facts)
    (seen,) = tape.seen("scheduled")
    assert (seen["decode"], seen["prefill"], seen["drafts"]) == ([1], [(2, 0, 7)], [(1, 4)])
    assert seen["deferred"] == [(2, 3, 1)]


def test_empty_schedules_are_one_record_per_100_ms_and_before_the_next_decision(
    tape: Tape,
) -> None:
    for ms in range(250):
        tape.recorder.scheduled(object(), decision([], at_ns=ms * 1_000_000))
    tape.recorder.scheduled(object(), decision(["a"], at_ns=250_000_000))
    seen = tape.seen("empty", "scheduled")
    assert [record.name for record in seen] == ["empty", "empty", "empty", "scheduled"]
    assert sum(record["schedules"] for record in seen[:3]) == 250
    assert sum(record["schedule_ns"] for record in seen[:3]) == 250
    assert seen[3]["iteration_id"] == 1


def test_skipped_requests_are_at_most_64_edges_per_step(tape: Tape) -> None:
    tape.recorder.scheduled(object(), decision(["a"]))
    for number in range(100):
        tape.recorder.blocked(f"w{number}", at_ns=1, reason=10)
    tape.recorder.scheduled(object(), decision(["a"]))
    tape.recorder.unblocked("w0", at_ns=2, reason=10)
    seen = tape.seen("blocked", "unblocked", "notice")
    assert [record.name for record in seen] == [
        *["blocked"] * EDGES_PER_STEP,
        "notice",
        "unblocked",
    ]
    assert seen[-2]["count"] == 100 - EDGES_PER_STEP


def test_labels_end_at_1024_with_other_and_at_128_bytes(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "rings")
    seen = []
    for number in range(MOST_LABELS + 10):
        tape.tenants[f"r{number}"] = f"tenant {number} " + "é" * 100
        tape.recorder.arrived(f"r{number}", at_ns=1)
        seen += tape.seen()
    texts = {record["string"]: record["text"] for record in seen if record.name == "string"}
    assert sorted(texts) == list(range(1, MOST_LABELS + 1))
    assert texts[MOST_LABELS] == "other"
    assert {len(texts[n].encode()) for n in range(100, 1000)} <= {127, 128}
    tenants = [record["tenant"] for record in seen if record.name == "arrived"]
    assert tenants == [min(number + 1, MOST_LABELS) for number in range(MOST_LABELS + 10)]


def test_a_label_is_announced_again_in_every_segment(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "rings", tenant="red")
    known: set[int] = set()
    segments = 0
    for number in range(1500):
        tape.recorder.arrived(f"r{number}", at_ns=1)
        for record in tape.seen():
            if record.name == "segment":
                known, segments = set(), segments + 1
            elif record.name == "string":
                known.add(record["string"])
            elif record.name == "arrived":
                assert record["tenant"] in known
    assert segments > 2


def test_only_counts_leave_at_the_level_of_iterations(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "rings", level=1)
    batch = object()
    tape.recorder.arrived("a", at_ns=1)
    tape.recorder.scheduled(batch, decision(["a"]))
    tape.recorder.set_level(2)
    tape.recorder.scheduled(batch, decision(["a"]))
    counted, named = tape.seen("scheduled")
    assert (counted.flags, counted["n_decode"], counted["decode"]) == (r.NO_MEMBERS, 1, [])
    assert (named.flags, named["decode"]) == (0, [1])


def test_the_budget_judges_full_windows_by_their_mean() -> None:
    budget = Budget(0.01)
    assert not any(budget.exceeded(9, 1000) for _ in range(3 * WINDOW))
    verdicts = [budget.exceeded(11, 1000) for _ in range(WINDOW)]
    assert verdicts == [False] * (WINDOW - 1) + [True]
    assert budget.found == pytest.approx(0.011)


def test_hooks_that_were_descheduled_now_and_then_are_no_verdict() -> None:
    budget = Budget(0.01)
    costs = [4_000_000 if i % 10 == 0 else 30_000 for i in range(WINDOW)]
    assert not any(budget.exceeded(cost, 10_000_000) for cost in costs)
    assert budget.found > 0.04


@pytest.mark.parametrize(("said", "share"), [("0.05", 0.05), ("0", 0), ("-1", 0), ("much", 0.01)])
def test_the_budget_is_what_the_environment_says(said: str, share: float) -> None:
    assert budget_from({"BATCHSCOPE_OVERHEAD": said}).share == share


def test_a_share_of_zero_is_no_limit() -> None:
    assert not any(Budget(0).exceeded(10, 10) for _ in range(2 * WINDOW))


def test_secrets_stay_out_of_hello_and_token_counts_stay_in() -> None:
    config = {
        "max_num_batched_tokens": 512,
        "hf_token": "s",
        "token": "s",
        "api-key": "s",
        "server": {"ssl_password": "s", "port": 1, "tokenizer": "t"},
        "replicas": [{"auth": "s", "eos_token_id": 3}],
        "path": Path("/x"),
    }
    assert without_secrets(config) == {
        "max_num_batched_tokens": 512,
        "server": {"port": 1, "tokenizer": "t"},
        "replicas": [{"eos_token_id": 3}],
        "path": "/x",
    }


def test_the_config_hash_knows_no_order_but_every_value() -> None:
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1}) != config_hash({"a": 1})


def test_a_salt_is_made_once_and_kept_private(tmp_path: Path) -> None:
    (tmp_path / "ctl").mkdir()
    assert read_salt(tmp_path) is None
    salt = make_salt(tmp_path)
    assert (make_salt(tmp_path), read_salt(tmp_path)) == (salt, salt)
    assert [path.name for path in (tmp_path / "ctl").iterdir()] == ["salt"]
    assert request_key("a", salt) != request_key("a", b"another salt")


def test_without_a_place_for_the_salt_the_process_has_its_own(tmp_path: Path) -> None:
    assert len(make_salt(tmp_path / "nowhere")) == 16
