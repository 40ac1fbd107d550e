"""The contract of every adapter: the engine does the same as without us, whatever happens."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.adapters.drivers import DRIVERS, EngineDriver
from tests.adapters.ring_records import Seen, read

from batchscope.adapters import boot
from batchscope.adapters.attachment import Attachment
from batchscope.adapters.base import Adapter
from batchscope.adapters.guard import Seam, is_hook
from batchscope.schemas import records as r
from batchscope.schemas.ring import RingReader, list_rings, request_detach, retire, set_level

pytestmark = pytest.mark.parametrize("driver", DRIVERS, ids=lambda d: d.name)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        "BATCHSCOPE": "1",
        "BATCHSCOPE_DIR": str(tmp_path / "rings"),
        "BATCHSCOPE_RING_BYTES": str(1 << 20),
        "BATCHSCOPE_REQUEST_IDS": "plain",
        "BATCHSCOPE_OVERHEAD": "0",
    }


def attach(adapter: Adapter, engine: Any, env: dict[str, str]) -> Attachment:
    handle = boot.attach(adapter, engine, env)
    assert isinstance(handle, Attachment)
    return handle


def folder(env: dict[str, str]) -> Path:
    return Path(env["BATCHSCOPE_DIR"])


def attributes(driver: EngineDriver, engine: Any) -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in driver.owners(engine)]


def hooks(driver: EngineDriver, engine: Any) -> list[str]:
    owners = driver.owners(engine)
    return [name for owner in owners for name, value in vars(owner).items() if is_hook(value)]


def unhooked(driver: EngineDriver) -> Any:
    return driver.run(driver.engine())


def with_seams(adapter: Adapter, change: Any) -> Adapter:
    return replace(adapter, seams=tuple(change(seam) for seam in adapter.seams))


def raising(*args: Any, **kwargs: Any) -> None:
    raise KeyError("a translation of ours")


def test_a_hooked_engine_decides_and_gives_out_the_same(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)
    assert driver.run(engine) == unhooked(driver)
    assert handle.attached
    assert handle.faults.count == 0


def test_detach_restores_the_identical_objects(driver: EngineDriver, env: dict[str, str]) -> None:
    engine = driver.engine()
    before = attributes(driver, engine)
    handle = attach(driver.adapter(), engine, env)
    assert len(hooks(driver, engine)) == len(driver.adapter().seams)
    handle.detach()
    handle.detach()
    after = attributes(driver, engine)
    assert [list(own) for own in before] == [list(own) for own in after]
    assert all(a[name] is b[name] for a, b in zip(before, after, strict=True) for name in a)
    assert not handle.attached


def test_attaching_twice_gives_the_first_handle(driver: EngineDriver, env: dict[str, str]) -> None:
    engine = driver.engine()
    first = attach(driver.adapter(), engine, env)
    assert attach(driver.adapter(), engine, env) is first
    assert len(list_rings(folder(env))) == 1


def test_zero_in_the_environment_leaves_the_engine_unwrapped(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = boot.attach(driver.adapter(), engine, {**env, "BATCHSCOPE": "0"})
    assert hooks(driver, engine) == []
    assert not handle.attached
    assert not folder(env).exists()


def test_a_dormant_engine_has_one_hook_and_only_the_control_file(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    del env["BATCHSCOPE"]
    attach(driver.adapter(), engine, env)
    assert driver.run(engine) == unhooked(driver)
    assert hooks(driver, engine) == [driver.adapter().seams[0].attribute]
    files = {path.suffix or path.name for path in folder(env).rglob("*") if path.is_file()}
    assert files == {".ctl", "salt"}


def test_the_control_word_wakes_an_engine_one_segment_per_iteration(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    del env["BATCHSCOPE"]
    handle = attach(driver.adapter(), engine, env)
    active: list[bool] = []

    def wake(step: int) -> None:
        if step == 10:
            set_level(folder(env), str(handle.ring_uuid), 2)
        active.append(handle.recorder is not None)

    assert driver.run(engine, every_step=wake) == unhooked(driver)
    assert active.index(True) == 10 + 15, "16 segments, the first by the step after the word"
    seen = read(folder(env))
    assert {"live", "scheduled", "completed"} <= {record.name for record in seen}


def test_a_detach_while_the_ring_grows_leaves_no_file(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    del env["BATCHSCOPE"]
    handle = attach(driver.adapter(), engine, env)
    acts = {5: lambda: set_level(folder(env), str(handle.ring_uuid), 2), 10: handle.detach}

    def act(step: int) -> None:
        if step in acts:
            acts[step]()

    assert driver.run(engine, every_step=act) == unhooked(driver)
    assert [path.name for path in folder(env).rglob("*") if path.is_file()] == ["salt"]


def test_switching_off_says_goodbye_and_on_again_uses_new_serials(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)
    levels = {12: 0, 24: 2, 30: 1, 40: 2}

    def turn(step: int) -> None:
        if step in levels:
            set_level(folder(env), str(handle.ring_uuid), levels[step])

    assert driver.run(engine, every_step=turn) == unhooked(driver)
    seen = read(folder(env))
    names = [record.name for record in seen]
    off = names.index("bye")
    first, second = introduced(seen[:off]), introduced(seen[off:])
    assert max(first) < min(second), "a serial is never used for two"
    assert names.count("bye") == 1
    counted = [record for record in seen if record.name == "scheduled"]
    assert [bool(c.flags & r.NO_MEMBERS) for c in counted].count(True) == 10
    assert [c["iteration_id"] for c in counted] == list(range(1, len(counted) + 1))


def test_switched_off_again_only_the_gate_stays_and_what_others_wrapped(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)
    gate, second = driver.adapter().seams[:2]
    owner = second.owner(engine)
    ours = getattr(owner, second.attribute)
    found: dict[int, list[str]] = {}

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    def turn(step: int) -> None:
        if step in levels:
            set_level(folder(env), str(handle.ring_uuid), levels[step])
        found[step] = hooks(driver, engine)
        if step == 16:
            setattr(owner, second.attribute, theirs)

    levels = {4: 0, 8: 2, 20: 0, 24: 2}
    assert driver.run(engine, every_step=turn) == unhooked(driver)
    everything, wrapped = found[1], [name for name in found[1] if name != second.attribute]
    assert len(everything) == len(driver.adapter().seams)
    assert found[6] == [gate.attribute]
    assert sorted(found[10]) == sorted(everything)
    assert found[22] == [gate.attribute]
    assert sorted(found[26]) == sorted(wrapped)
    assert vars(owner)[second.attribute] is theirs
    completed = [
        record["iteration_id"] for record in read(folder(env)) if record.name == "completed"
    ]
    assert len(completed) == len(set(completed)), "a hook that stayed is not put on twice"


def test_switched_off_again_it_costs_what_a_dormant_one_costs(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    del env["BATCHSCOPE"]
    never, again = driver.engine(), driver.engine()
    attach(driver.adapter(), never, env)
    dormant = calls_of_ours(driver, never, lambda step: None)
    handle = attach(driver.adapter(), again, env)
    levels = {2: 2, 40: 0}

    def turn(step: int) -> None:
        if step in levels:
            set_level(folder(env), str(handle.ring_uuid), levels[step])
        if step in (30, 50):
            assert (handle.recorder is not None) == (step == 30)

    assert calls_of_ours(driver, again, turn) == dormant
    assert set(dormant) == {"hook"}, "and of it one call an iteration"
    assert hooks(driver, again) == [driver.adapter().seams[0].attribute]


def calls_of_ours(
    driver: EngineDriver, engine: Any, every_step: Callable[[int], None]
) -> Counter[str]:
    """Functions of the adapter that the engine's steps call from the 60th on, by name."""
    calls, ours = Counter[str](), str(Path(boot.__file__).parent)

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls[frame.f_code.co_name] += 1

    def step(number: int) -> None:
        sys.setprofile(None)
        every_step(number)
        if number >= 60:
            sys.setprofile(count)

    try:
        driver.run(engine, every_step=step)
    finally:
        sys.setprofile(None)
    return calls


def introduced(seen: list[Seen]) -> set[int]:
    return {record["serial"] for record in seen if record.name in ("arrived", "live")}


def test_a_detach_request_is_followed_at_the_next_iteration(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)

    def ask(step: int) -> None:
        if step == 8:
            request_detach(folder(env), str(handle.ring_uuid))

    assert driver.run(engine, every_step=ask) == unhooked(driver)
    assert hooks(driver, engine) == []
    assert read(folder(env))[-1].name == "bye"


def test_each_seam_may_raise_and_after_three_in_a_row_we_are_gone(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    expected = unhooked(driver)
    for name in [seam.name for seam in driver.adapter().seams]:

        def break_one(seam: Seam, name: str = name) -> Seam:
            return replace(seam, after=raising) if seam.name == name else seam

        own = {**env, "BATCHSCOPE_DIR": f"{env['BATCHSCOPE_DIR']}/{name}"}
        engine = driver.engine()
        handle = attach(with_seams(driver.adapter(), break_one), engine, own)
        assert driver.run(engine) == expected
        assert (handle.faults.count, handle.attached) == (3, False), name
        assert hooks(driver, engine) == []
        notices = [record["text"] for record in read(folder(own)) if record.name == "notice"]
        assert ["KeyError" in text for text in notices] == [True, False], "one notice per kind"


def test_all_seams_may_raise_before_and_after(driver: EngineDriver, env: dict[str, str]) -> None:
    broken = with_seams(driver.adapter(), lambda s: replace(s, before=raising, after=raising))
    engine = driver.engine()
    handle = attach(broken, engine, env)
    assert driver.run(engine) == unhooked(driver)
    assert not handle.attached
    assert hooks(driver, engine) == []


def test_where_the_entry_of_a_seam_raises_nothing_is_written_from_stale_facts(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    calls = Counter[str]()

    def counted(*args: Any, **kwargs: Any) -> None:
        calls["after"] += 1

    def broken(seam: Seam) -> Seam:
        return replace(seam, before=raising, after=counted) if seam.before else seam

    engine = driver.engine()
    attach(with_seams(driver.adapter(), broken), engine, env)
    assert driver.run(engine) == unhooked(driver)
    assert calls["after"] == 0


def test_each_seam_may_be_missing_and_is_reported(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    expected = unhooked(driver)
    for name in [seam.name for seam in driver.adapter().seams[1:]]:

        def drop_one(seam: Seam, name: str = name) -> Seam:
            return replace(seam, attribute="gone_in_this_version") if seam.name == name else seam

        own = {**env, "BATCHSCOPE_DIR": f"{env['BATCHSCOPE_DIR']}/{name}"}
        engine = driver.engine()
        handle = attach(with_seams(driver.adapter(), drop_one), engine, own)
        assert driver.run(engine) == expected
        assert handle.attached
        seen = read(folder(own))
        assert name in [record["text"] for record in seen if record.name == "string"]
        (path,) = list_rings(folder(own))
        assert RingReader(path).hello["provides"][f"seam:{name}"] == "absent"


def test_without_the_opening_seam_nothing_is_touched(
    driver: EngineDriver, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    engine = driver.engine()
    gone = with_seams(driver.adapter(), lambda s: replace(s, attribute="gone_in_this_version"))
    handle = boot.attach(gone, engine, env)
    assert driver.run(engine) == unhooked(driver)
    assert (hooks(driver, engine), handle.attached) == ([], False)
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unwritable_folder_means_off_with_one_line(
    driver: EngineDriver,
    env: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    engine = driver.engine()
    handle = boot.attach(driver.adapter(), engine, {**env, "BATCHSCOPE_DIR": f"{tmp_path}/file/x"})
    assert driver.run(engine) == unhooked(driver)
    assert (hooks(driver, engine), handle.attached) == ([], False)
    assert capsys.readouterr().err.startswith("batchscope: off, ")


def test_the_folder_may_vanish_while_running(driver: EngineDriver, env: dict[str, str]) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)

    def vanish(step: int) -> None:
        if step == 10:
            shutil.rmtree(folder(env))

    assert driver.run(engine, every_step=vanish) == unhooked(driver)
    handle.detach()
    assert hooks(driver, engine) == []


def test_a_wrapper_put_on_after_ours_stays_and_goes_on_working(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    expected = unhooked(driver)
    for seam in driver.adapter().seams:
        own = {**env, "BATCHSCOPE_DIR": f"{env['BATCHSCOPE_DIR']}/{seam.name}"}
        engine = driver.engine()
        handle = attach(driver.adapter(), engine, own)
        owner, calls = seam.owner(engine), Counter[str]()
        theirs = wrapper(getattr(owner, seam.attribute), calls)
        setattr(owner, seam.attribute, theirs)

        def leave(step: int, handle: Attachment = handle, calls: Counter[str] = calls) -> None:
            if step == 12:
                handle.detach()
                calls["until then"] = calls["theirs"]

        assert driver.run(engine, every_step=leave) == expected, seam.name
        assert vars(owner)[seam.attribute] is theirs
        assert hooks(driver, engine) == []
        scheduled = sum(record.name == "scheduled" for record in read(folder(own)))
        assert 0 < scheduled <= 12
        went_on = calls["theirs"] > calls["until then"]
        assert went_on or not calls["theirs"], "through ours, which has left"


def wrapper(ours: Any, calls: Counter[str]) -> Any:
    """Somebody else's, over what is there."""

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls["theirs"] += 1
        return ours(*args, **kwargs)

    return theirs


def test_an_original_that_raises_raises_as_before(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    seam = driver.adapter().seams[0]
    owner = seam.owner(engine)

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise LookupError("the engine's own")

    setattr(owner, seam.attribute, failing)
    handle = attach(driver.adapter(), engine, env)
    with pytest.raises(LookupError, match="the engine's own"):
        getattr(owner, seam.attribute)()
    assert handle.faults.count == 0
    handle.detach()
    assert vars(owner)[seam.attribute] is failing


def test_a_hundred_attachments_under_load_leave_no_trace(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    before = attributes(driver, engine)
    handles: list[Attachment] = []

    def toggle(step: int) -> None:
        if handles and handles[-1].attached:
            handles[-1].detach()
            for path in list_rings(folder(env)):
                retire(path)
        elif len(handles) < 100:
            handles.append(attach(driver.adapter(), engine, env))

    expected = unhooked(driver)
    assert driver.run(engine, every_step=toggle) == expected
    for _ in range(30):
        if len(handles) == 100 and not handles[-1].attached:
            break
        driver.run(engine, every_step=toggle)
    assert len({id(handle) for handle in handles}) == 100
    assert not any(handle.attached for handle in handles)
    after = attributes(driver, engine)
    assert [list(own) for own in before] == [list(own) for own in after]


def test_a_forked_child_opens_its_own_ring_at_its_first_step(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, env)
    expected = unhooked(driver)
    child = os.fork()
    if child == 0:
        same = driver.run(engine) == expected
        os._exit(0 if same and handle.attached and handle.faults.count == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert driver.run(engine) == expected
    paths = list_rings(folder(env))
    assert len(paths) == 2
    assert str(handle.ring_uuid) in {path.stem for path in paths}


def test_over_budget_the_members_go_first_and_then_we(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    # an engine without waits takes microseconds a step: our hooks are far more than 1 % of it
    handle = attach(driver.adapter(), engine, {**env, "BATCHSCOPE_OVERHEAD": "0.01"})
    while handle.attached:
        driver.run(engine)
    seen = read(folder(env))
    said = [record["text"] for record in seen if record.name == "notice"]
    assert "members left out" in said[0]
    assert "detached" in said[1]
    assert hooks(driver, engine) == []


def test_what_is_said_to_be_provided_is(driver: EngineDriver, env: dict[str, str]) -> None:
    engine = driver.engine()
    adapter = driver.adapter()
    attach(adapter, engine, env)
    driver.run(engine)
    seen = read(folder(env))
    for path, how in adapter.provides.items():
        name, field = path.split(".")
        values = {record[field] for record in seen if record.name == name}
        known = values - {None, 0}
        assert bool(known) == (how.value != "absent"), (path, how, known)


def test_every_optional_field_is_declared(driver: EngineDriver, env: dict[str, str]) -> None:
    declared = set(driver.adapter().provides)
    for record in (r.ARRIVED, r.SCHEDULED, r.COMPLETED, r.FINISHED):
        optional = {f"{record.name}.{field.name}" for field in record.fields if field.optional}
        assert optional - declared <= {"scheduled.observer_ns"}, record.name


def test_records_agree_with_the_engines_own_totals(
    driver: EngineDriver, env: dict[str, str]
) -> None:
    engine = driver.engine()
    attach(driver.adapter(), engine, {**env, "BATCHSCOPE_RING_BYTES": str(16 << 20)})
    _, totals = driver.run(engine)
    seen = read(folder(env))
    kinds = Counter(record.name for record in seen)
    decisions = [record for record in seen if record.name == "scheduled"]
    assert kinds["scheduled"] == kinds["completed"] == totals["iterations"]
    assert kinds["arrived"] == totals["requests"]["arrived"]
    assert kinds["preempted"] == totals["preemptions"] > 0
    assert sum(d["n_decode"] + d["n_prefill"] for d in decisions) == totals["member_steps"]
    for phase in ("prefill", "decode"):
        assert sum(d[f"{phase}_tokens"] for d in decisions) == totals["tokens"][phase]
    left_out = sum(n for d in decisions for n, _, _ in d["deferred"])
    assert left_out == sum(totals["deferrals"].values()) > 0
    members = sum(d["n_decode"] + d["n_prefill"] for d in decisions)
    silent = [n for record in seen if record.name == "completed" for _, n in record["emitted"]]
    assert members + sum(n - 1 for n in silent) == totals["tokens"]["output"]
    ends = Counter(record["reason"] for record in seen if record.name == "finished")
    assert ends.total() == totals["requests"]["arrived"] - totals["requests"]["live"]
    assert totals["requests"]["aborted"] == driver.aborted
