"""The pipeline: many rings, rings that come and go, a store that can't write, sinks that fail."""

import os
import subprocess
import threading
import time
from typing import Any

import pytest
from tests.support.engine_process import Load, hello
from tests.support.served import until

from batchscope.exporter.errors import StoreError
from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.prom import Exposition
from batchscope.exporter.retention import Bounds, retain
from batchscope.exporter.store import Store
from batchscope.schemas.records import BYE, EMPTY
from batchscope.schemas.ring import RingLocked, RingWriter
from batchscope.schemas.slo import Slo


class Rig:
    """A folder, a store, and pipelines and engines on them that are all ended at the end."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.path = folder / "rings", folder / "s.duckdb"
        self.writers: list[Any] = []
        self.running: list[Any] = []

    def engine(self, seed: Any = 1, **said: Any) -> Any:
        writer = RingWriter(self.folder, hello(seed) | said)
        while not writer.grow():
            pass
        self.writers.append(writer)
        return Load(writer, seed)

    def exporter(self, **given: Any) -> Any:
        quick: dict[str, Any] = {"commit_s": 0.02, "rest_s": (0.01, 0.05), "look_s": 0.05}
        options = Options(**quick, **given.pop("options", {}))
        store = Store.open(given.pop("path", self.path))
        pipeline = Pipeline(self.folder, store, options=options, **given)
        pipeline.start()
        self.running.append(pipeline)
        return pipeline

    def stop(self, pipeline: Any) -> None:
        self.running.remove(pipeline)
        pipeline.stop()
        pipeline.store.close()

    def leave(self, load: Any, *, goodbye: Any = True) -> None:
        if goodbye:
            load.put(BYE, at_ns=time.monotonic_ns())
        self.writers.remove(load.writer)
        load.writer.close()


@pytest.fixture
def rig(tmp_path: Any) -> Any:
    made = Rig(tmp_path)
    yield made
    for pipeline in list(made.running):
        made.stop(pipeline)
    for writer in made.writers:
        writer.close(unlink=True)


def count(pipeline: Any, table: Any) -> Any:
    return pipeline.store.rows(f"SELECT count(*) FROM {table}")[0][0]


def distinct(pipeline: Any) -> Any:
    return pipeline.store.rows("SELECT count(DISTINCT iteration_id) FROM all_iterations")[0][0]


def steps(load: Any, n: Any) -> None:
    for _ in range(n):
        load.step()


def test_what_an_engine_writes_is_in_the_store_within_a_second(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 50)
    until(lambda: count(pipeline, "all_iterations") == 50, seconds=1.0)
    assert pipeline.store.rows("SELECT engine, state FROM engines") == [("synthetic-1", "live")]
    assert pipeline.store.rows("SELECT config_hash FROM configs") == [("synthetic",)]


def test_rings_that_appear_and_leave_are_followed_and_retired(rig: Any) -> None:
    pipeline = rig.exporter()
    first, second = rig.engine(1), rig.engine(2)
    steps(first, 20)
    steps(second, 30)
    rig.leave(first)
    rig.leave(second, goodbye=False)
    until(lambda: not list(rig.folder.glob("*.ring")))
    states = dict(pipeline.store.rows("SELECT engine, state FROM engines"))
    assert states == {"synthetic-1": "closed", "synthetic-2": "dead"}
    assert count(pipeline, "all_iterations") == 50
    kinds = pipeline.store.rows("SELECT kind, count(*) FROM marks GROUP BY 1 ORDER BY 1")
    assert kinds == [("attach", 2), ("closed", 1), ("dead", 1)]


def test_counters_of_an_engine_add_up_over_its_restarts_and_ours(rig: Any) -> None:
    pipeline = rig.exporter()
    for n in (20, 30):
        load = rig.engine()
        steps(load, n)
        until(lambda: count(pipeline, "all_iterations") in (20, 50))
        rig.leave(load)
        until(lambda: not list(rig.folder.glob("*.ring")))
    before = iterations_total(pipeline)
    rig.stop(pipeline)
    assert before == iterations_total(rig.exporter()) == 50


def test_a_scrape_shows_the_counters_of_an_engine_that_left_before_we_started(rig: Any) -> None:
    first, load = rig.exporter(), rig.engine(provides={"preempted.lost_tokens": "exact"})
    steps(load, 20)
    rig.leave(load)
    until(lambda: not list(rig.folder.glob("*.ring")))
    before = counters_scraped(first)
    rig.stop(first)
    assert counters_scraped(rig.exporter()) == before != []


class AskedWhileLeaving(dict[Any, Any]):
    """Rings of a pipeline; while one is taken out another thread asks for the engines."""

    pipeline: Any
    seen: Any

    def __delitem__(self, path: Any) -> None:
        scrape = threading.Thread(target=lambda: self.seen.append(iterations_total(self.pipeline)))
        scrape.start()
        scrape.join(0.2)  # may be made to wait until it is out
        super().__delitem__(path)


def test_a_scrape_while_an_engine_leaves_counts_it_once(rig: Any) -> None:
    pipeline, load = rig.exporter(), rig.engine()
    steps(load, 20)
    until(lambda: count(pipeline, "all_iterations") == 20)
    rings = pipeline._rings = AskedWhileLeaving(pipeline._rings)
    rings.pipeline, rings.seen = pipeline, []
    rig.leave(load)
    until(lambda: rings.seen)
    assert rings.seen == [20]


def counters_scraped(pipeline: Any) -> Any:
    text = Exposition(pipeline.engines, dict).render("", "")[0].decode()
    return sorted(n for n in text.splitlines() if "synthetic-1" in n and "_total{" in n)


def test_an_engine_whose_ring_went_while_no_exporter_ran_is_dead(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 10)
    until(lambda: count(pipeline, "all_iterations") == 10)
    lived = pipeline.store.rows("SELECT serial FROM requests_open ORDER BY 1")
    assert lived
    rig.stop(pipeline)
    load.writer.path.unlink()  # as a reboot does with /dev/shm
    again = rig.exporter()
    ((state, ended),) = again.store.rows("SELECT state, ended_unix_ns FROM engines")
    assert state == "dead"
    assert ended is not None
    assert again.engines()[0].state == "dead"
    assert count(again, "requests_open") == count(again, "runs_open") == 0
    unknown = "SELECT serial FROM requests WHERE finish_reason = 'unknown' ORDER BY 1"
    assert again.store.rows(unknown) == lived
    rig.stop(again)
    third = rig.exporter()  # nothing is ended twice, and the counters have it
    assert third.store.rows(unknown) == lived
    counters = third.engines()[0].totals.counters
    assert counters["requests_finished", ("unknown",)] == len(lived)


def iterations_total(pipeline: Any) -> Any:
    (one,) = pipeline.engines()
    return sum(n for (name, _), n in one.totals.counters.items() if name == "iterations")


def test_a_dead_engine_runs_nothing_and_holds_nothing(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 40)
    until(lambda: count(pipeline, "all_iterations") == 40)
    assert pipeline.engines()[0].gauges["running_requests", ()] > 0
    rig.leave(load, goodbye=False)
    until(lambda: pipeline.engines()[0].state == "dead")
    gauges = pipeline.engines()[0].gauges
    assert gauges["running_requests", ()] == gauges["live_requests", ()] == 0
    assert gauges["engine_up", ()] == 0
    assert not any(name == "kv_blocks" for name, _ in gauges)


def test_one_folder_has_one_exporter(rig: Any, tmp_path: Any) -> None:
    rig.exporter()
    other = Store.open(tmp_path / "other.duckdb")
    with pytest.raises(RingLocked, match="another exporter reads"):
        Pipeline(rig.folder, other).start()
    other.close()


def test_a_ring_of_another_version_is_named_and_disturbs_no_other(rig: Any) -> None:
    strange, load = rig.engine(2), rig.engine(1)
    with open(strange.writer.path, "r+b") as file:
        file.seek(8)
        file.write(b"\x63\0\0\0")
    pipeline = rig.exporter()
    steps(load, 10)
    until(lambda: count(pipeline, "all_iterations") == 10)
    (why,) = pipeline.refused.values()
    assert "has schema version 99, this batchscope reads version" in why
    assert pipeline.exporter_values()["rings", ("refused",)] == 1
    assert pipeline.exporter_values()["rings", ("live",)] == 1


def test_a_file_that_is_no_ring_is_refused_once_and_left_alone(rig: Any) -> None:
    rig.folder.mkdir(mode=0o700)
    (rig.folder / "nonsense.ring").write_bytes(b"nonsense" * 10_000)
    pipeline = rig.exporter()
    assert "nonsense.ring" in next(iter(pipeline.refused.values()))
    assert (rig.folder / "nonsense.ring").exists()


class Broken:
    """A sink whose every call fails."""

    def rows(self, ring: Any, rows: Any) -> None:
        raise RuntimeError("no")

    def values(self) -> Any:
        return {("spans", ("dropped",)): 1}

    def close(self) -> None:
        raise RuntimeError("no")


class Stuck(Broken):
    """A sink that never returns before it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def rows(self, ring: Any, rows: Any) -> None:
        self.gate.wait(30)


def test_a_broken_and_a_stuck_sink_cost_counters_and_nothing_else(rig: Any) -> None:
    stuck = Stuck()
    pipeline = rig.exporter(sinks={"broken": Broken(), "stuck": stuck})
    load = rig.engine()
    for n in range(1, 6):
        steps(load, 1)
        until(lambda n=n: count(pipeline, "all_iterations") == n)
    values = pipeline.exporter_values()
    assert values["collector_errors", ("broken",)] >= 1
    assert values["spans", ("dropped",)] == 1
    stuck.gate.set()


def test_marks_and_samples_reach_the_store(rig: Any) -> None:
    sample = {"device": [0], "uuid": ["GPU-0"], "unix_ns": [5], "sm_ratio": [0.5]}
    pipeline = rig.exporter(samples=iter([{"gpu": sample}, *[{}] * 10_000]).__next__)
    pipeline.mark("deploy 7", engine="e")
    until(lambda: count(pipeline, "marks") == 1)
    until(lambda: pipeline.store.rows("SELECT uuid, sm_ratio FROM gpu") == [("GPU-0", 0.5)])


def test_a_store_that_cannot_write_stops_reading_in_time(rig: Any, monkeypatch: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter(options={"queue_bytes": 20_000})
    real = pipeline.store.commit
    monkeypatch.setattr(pipeline.store, "commit", refuse)
    monkeypatch.setattr("batchscope.exporter.writer.RETRY_S", 0.05)
    steps(load, 400)
    until(lambda: pipeline.store_error == "can't write to here: No space left on device")
    values = pipeline.exporter_values()
    assert values["store_up", ()] == 0
    until(lambda: pipeline.exporter_values()["store_queue_bytes", ()] > 20_000)
    monkeypatch.setattr(pipeline.store, "commit", real)
    until(lambda: count(pipeline, "all_iterations") == 400)
    assert pipeline.exporter_values()["store_up", ()] == 1
    assert distinct(pipeline) == 400
    assert count(pipeline, "losses") == 0


def refuse(_: Any) -> None:
    raise StoreError("can't write to here: No space left on device")


@pytest.fixture
def small_disk(tmp_path: Any) -> Any:
    """A disk of 12 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_survived_without_loss(rig: Any, small_disk: Any) -> None:
    pipeline = rig.exporter(path=small_disk / "s.duckdb")
    load = rig.engine()
    fill(small_disk / "ballast")
    steps(load, 500)
    until(lambda: "No space left" in (pipeline.store_error or ""))
    steps(load, 500)
    assert pipeline.engines()[0].state == "live"
    assert pipeline.store.query("engines").num_columns > 5  # it still answers
    os.unlink(small_disk / "ballast")
    until(lambda: count(pipeline, "all_iterations") == 1000, seconds=15)
    assert distinct(pipeline) == 1000
    assert (count(pipeline, "losses"), pipeline.store_error) == (0, None)


def fill(path: Any) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def test_what_was_overwritten_while_no_exporter_ran_is_a_loss_counted_exactly(rig: Any) -> None:
    load = rig.engine()
    load.writer.close(unlink=True)
    rig.writers.remove(load.writer)
    writer = RingWriter(rig.folder, hello(1), size=1 << 20)
    while not writer.grow():
        pass
    rig.writers.append(writer)
    load = Load(writer, 1)
    first = rig.exporter()
    steps(load, 20)
    until(lambda: count(first, "all_iterations") == 20)
    rig.stop(first)
    steps(load, 6_000)  # about 2 MB into a ring of 1 MB
    second = rig.exporter()
    total = writer.iteration_id - 1
    until(lambda: newest(second) == total)
    (lost,) = second.store.rows("SELECT iterations, records, rejected FROM losses")
    assert lost[0] > 0
    assert lost[2] == 0
    seen = count(second, "all_iterations")
    assert seen + lost[0] == total
    (one,) = second.engines()
    assert one.totals.counters["lost_records", ()] == lost[1]


def newest(pipeline: Any) -> Any:
    return pipeline.store.rows("SELECT max(iteration_id) FROM all_iterations")[0][0]


def test_retention_by_size_deletes_oldest_detail_first_and_keeps_the_newest(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 3_000)
    until(lambda: count(pipeline, "all_iterations") == 3_000, seconds=20)
    store = pipeline.store
    rig.running.remove(pipeline)
    pipeline.stop()
    before = {
        t: store.rows(f"SELECT count(*), max(unix_ns) FROM {t}")[0] for t in ("runs", "iterations")
    }
    gone = retain(store, Bounds(max_bytes=store.used_bytes() // 2), now_unix_ns=time.time_ns())
    after = {
        t: store.rows(f"SELECT count(*), max(unix_ns) FROM {t}")[0] for t in ("runs", "iterations")
    }
    assert gone > 0
    assert after["runs"][0] < before["runs"][0]
    assert after["runs"][0] / before["runs"][0] <= after["iterations"][0] / before["iterations"][0]
    store.close()


def test_retention_by_age_deletes_what_is_older(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 100)
    until(lambda: count(pipeline, "all_iterations") == 100)
    store = pipeline.store
    rig.running.remove(pipeline)
    pipeline.stop()
    middle = store.rows("SELECT quantile_disc(unix_ns, 0.5) FROM all_iterations")[0][0]
    retain(store, Bounds(max_age_ns=1_000), now_unix_ns=middle + 1_000)
    assert 45 <= store.rows("SELECT count(*) FROM all_iterations")[0][0] <= 55
    store.close()


def test_the_state_of_rings_long_gone_is_dropped_but_not_their_position(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 10)
    rig.leave(load)
    until(lambda: not list(rig.folder.glob("*.ring")))
    rig.running.remove(pipeline)
    pipeline.stop()
    (before,) = pipeline.store.ring_states().values()
    retain(pipeline.store, Bounds(max_age_ns=1), now_unix_ns=time.time_ns())
    (after,) = pipeline.store.ring_states().values()
    assert (after.seq, after.byte_pos, after.blob) == (before.seq, before.byte_pos, b"")
    pipeline.store.close()
    assert iterations_total(rig.exporter()) == 0


def test_an_idle_exporter_does_not_commit(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    load.put(EMPTY, at_ns=1, first_ns=1, schedules=1)
    until(lambda: [s.seq for s in pipeline.store.ring_states().values()] == [3])
    until(lambda: not pipeline.exporter_values()["store_queue_bytes", ()])
    batch = pipeline.store.batch
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert pipeline.store.batch == batch
        threading.Event().wait(0.05)


def test_a_ring_whose_fold_fails_is_named_and_disturbs_no_other(rig: Any, monkeypatch: Any) -> None:
    pipeline = rig.exporter()
    bad, good = rig.engine(2), rig.engine(1)
    steps(bad, 5)
    until(lambda: count(pipeline, "all_iterations") == 5)
    (ring,) = [r for r in pipeline._rings.values() if r.engine == "synthetic-2"]
    monkeypatch.setattr(ring.fold, "fold", None)
    steps(bad, 5)
    steps(good, 10)
    until(lambda: pipeline.refused)
    assert "TypeError while folding" in next(iter(pipeline.refused.values()))
    until(lambda: count(pipeline, "all_iterations") == 15)
    assert pipeline.exporter_values()["collector_errors", ("fold",)] == 1
    states = {one.labels["engine"]: one.state for one in pipeline.engines()}
    assert states == {"synthetic-1": "live", "synthetic-2": "refused"}


def test_a_new_slo_judges_what_is_read_next_even_after_silence(rig: Any) -> None:
    load, pipeline = (
        rig.engine(),
        rig.exporter(options={"slo": Slo.parse("ttft<=3600s", name="old")}),
    )
    steps(load, 30)
    until(lambda: count(pipeline, "all_iterations") == 30)
    until(lambda: pipeline.exporter_values()["store_queue_bytes", ()] == 0)
    pipeline.judge_by(Slo.parse("ttft<=1us", name="new"))
    before = count(pipeline, "requests")
    steps(load, 30)
    until(lambda: count(pipeline, "all_iterations") == 60)
    judged = pipeline.store.rows("SELECT slo FROM requests ORDER BY unix_ns")
    assert {slo for (slo,) in judged[before:]} == {"new"}


def test_a_version_of_an_slo_never_means_two_sets_of_targets(rig: Any) -> None:
    first = rig.exporter(options={"slo": Slo.parse("ttft<=1s", name="cli")})
    assert first.judge_by(Slo.parse("ttft<=2s", name="put")).version == 1
    until(lambda: count(first, "slo") == 2)
    rig.stop(first)
    again = rig.exporter(options={"slo": Slo.parse("ttft<=1s", name="cli")})
    assert again.slo is not None
    assert again.slo.version == 1
    assert again.judge_by(Slo.parse("ttft<=3s", name="put")).version == 2
    assert again.judge_by(Slo.parse("ttft<=1.0000001s", name="cli")).version == 2
    until(lambda: count(again, "slo") == 4)
    told = again.store.rows("SELECT count(DISTINCT targets) FROM slo GROUP BY name, version")
    assert told == [(1,)] * 4


def test_requests_of_a_dead_engine_end_unknown_and_no_iteration_goes_with_them(rig: Any) -> None:
    load, pipeline = rig.engine(), rig.exporter()
    steps(load, 40)
    until(lambda: count(pipeline, "all_iterations") == 40)
    lived = pipeline.store.rows("SELECT serial FROM requests_open ORDER BY 1")
    assert lived
    rig.leave(load, goodbye=False)
    until(lambda: not list(rig.folder.glob("*.ring")))
    assert count(pipeline, "requests_open") == count(pipeline, "runs_open") == 0
    unknown = "SELECT serial FROM requests WHERE finish_reason = 'unknown' ORDER BY 1"
    assert pipeline.store.rows(unknown) == lived
    assert count(pipeline, "all_iterations") == distinct(pipeline) == 40
