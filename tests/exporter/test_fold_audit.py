"""Each law can fail, none fails on what is right, a loss silences what it makes undecidable."""

from typing import Any

import pytest
from tests.exporter.schedules import Engine
from tests.support.records import Script

from batchscope.exporter.audit import E2E_TOLERANCE_NS, LAWS
from batchscope.exporter.fold import RingFold


def served(**changes: Any) -> Script:
    """One request from arrival to end; `changes` bend single fields."""
    c: dict[str, Any] = {
        "prompt": 6,
        "second": 4,
        "output": 2,
        "tokens": 2,
        "e2e": 50,
        "running": 1,
        **changes,
    }
    s = Script(block_tokens=4)
    s.arrived(1, prompt=c["prompt"], at=0)
    s.scheduled(at=10, prefill=[(1, 0, 4)], budget=c.get("budget", 4), kv=c.get("kv", (9, 1, 0)))
    s.completed(at=20, emitted={1: 0})
    s.scheduled(at=22, prefill=[(1, c["second"], c["tokens"])], **c.get("fields", {}))
    s.completed(at=30)
    s.scheduled(at=32, decode=[1], running=c["running"], deferred=c.get("deferred", []))
    s.completed(at=50)
    s.finished(1, at=51, output=c["output"], engine_e2e_ns=c["e2e"])
    return s


def violations(script: Script, *cuts: int) -> tuple[dict[str, str | None], dict[str, int]]:
    fold = RingFold(script.hello, script.ring_id, slo=None)
    for chunk in script.chunks(*cuts):
        fold.fold(chunk)
    audit = fold.open_rows()["audit"]
    table = zip(audit["law"], audit["violations"].tolist(), audit["example"], strict=True)
    return {law: text for law, n, text in table if n}, dict(
        zip(audit["law"], audit["checks"].tolist(), strict=True)
    )


def never_completed() -> Script:
    s = Script()
    s.arrived(1, prompt=1, at=0).scheduled(at=1, prefill=[(1, 0, 1)])
    for i in range(64):
        s.scheduled(at=2 + i, running=1, flags=4)
    return s


def broken_down(reason: str, *, late: bool = False) -> Script:
    """A step fails and its one member ends; then the engine goes on."""
    s = Script().arrived(1, prompt=1, at=0)
    if late:
        s.scheduled(at=1, running=1, flags=4)
    s.scheduled(at=2, prefill=[(1, 0, 1)], running=1)
    s.finished(1, at=3, output=0, reason=reason)
    for i in range(66):
        s.scheduled(at=4 + i, running=0, flags=4).completed(at=4 + i)
    return s


def skipped_record() -> RingFold:
    s = served()
    chunks = s.chunks(3, 4)
    fold = RingFold(s.hello, s.ring_id, slo=None)
    fold.fold(chunks[0])
    fold.fold(chunks[2])
    return fold


def test_every_law_is_put_to_the_test_and_holds_on_what_is_right() -> None:
    found, checks = violations(served())
    assert found == {}
    assert checks.keys() == LAWS.keys()


@pytest.mark.parametrize(
    ("law", "script"),
    [
        ("tokens_emitted", served(output=3)),
        ("scheduled_completed", never_completed()),
        ("context_continuity", served(second=3)),
        ("prefill_sum", served(prompt=7)),
        ("batch_budget", served(budget=3)),
        ("kv_total", served(kv=(9, 8, 2))),
        ("live_requests", served(running=2)),
        ("deferred_waiting", served(deferred=[(1, "kv_blocks")])),
        ("member_sums", served(fields={"prefill_tokens": 5})),
        ("one_end", served().finished(7, at=60, output=1)),
        ("engine_e2e", served(e2e=50 - E2E_TOLERANCE_NS - 1)),
    ],
)
def test_a_broken_law_is_found_and_worded(law: str, script: Script) -> None:
    found, _ = violations(script)
    assert law in found
    assert found[law]


@pytest.mark.parametrize("cuts", [(), (3,), (4,), (3, 4, 20, 90)])
def test_a_step_that_failed_with_its_member_is_the_engines_fault_not_ours(
    cuts: tuple[int, ...],
) -> None:
    assert violations(broken_down("error"), *cuts)[0] == {}
    assert violations(broken_down("abort"), *cuts)[0].keys() == {"scheduled_completed"}
    found, _ = violations(broken_down("error", late=True), *cuts)
    assert found == {"scheduled_completed": "iteration 1 never completed"}


def test_a_record_that_is_missing_breaks_continuity() -> None:
    audit = skipped_record().open_rows()["audit"]
    at = audit["law"].index("seq_continuity")
    assert audit["violations"][at] == 1


def test_the_first_failure_is_the_example_however_the_records_are_cut() -> None:
    script = served(second=3, prompt=7, output=3)
    whole, _ = violations(script)
    parts, _ = violations(script, 2, 4, 6, 8)
    assert parts == whole


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("features", [(), ("preempt", "abort", "absent"), ("preempt", "spec")])
def test_an_engine_that_does_right_breaks_no_law(depth: int, features: tuple[str, ...]) -> None:
    wanted = {law for law in LAWS if law != "engine_e2e"}
    for seed in range(4):
        script = Engine(seed, depth=depth, features=frozenset(features)).run(150)
        found, checks = violations(script)
        assert found == {}
        assert checks.keys() >= wanted - {"one_end"}


def test_after_a_loss_what_it_makes_undecidable_is_not_judged() -> None:
    for seed in range(30):
        engine = Engine(seed, features=frozenset({"loss", "preempt", "abort"}))
        found, _ = violations(engine.run(120))
        assert found.keys() <= {"live_requests"}, seed


def test_two_ends_of_one_request_are_one_end() -> None:
    script = served().finished(1, at=60, output=2)
    fold = RingFold(script.hello, script.ring_id, slo=None)
    assert len(fold.fold(script.chunk())["requests"]["serial"]) == 1
    assert fold.totals.counters["requests_finished", ("stop",)] == 1
