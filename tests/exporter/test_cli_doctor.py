"""`batchscope doctor`: each finding is one line that is true, with its fix where one is needed."""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import as_json, base, engine, until
from tests.support.served import Served

from batchscope.adapters.vllm import shape
from batchscope.exporter.cli import checks, installed, places
from batchscope.exporter.cli.findings import Finding, Scene
from batchscope.schemas.ring import RingWriter, list_rings

NOBODY = "http://127.0.0.1:9"
S = 10**9
SOURCES = sorted((Path(__file__).parents[2] / ".cache" / "vllm").glob("*/vllm"))
NATIVE = sorted((Path(__file__).parents[2] / ".venvs").glob("vllm/lib/*/site-packages/vllm"))


def scene(folder: Any = None, **env: Any) -> Any:
    return Scene(env=env, folder=folder, url=env.get("URL", NOBODY))


def told(found: Any) -> Any:
    return [(one.about, one.status) for one in found]


@pytest.fixture
def memory() -> Any:
    """A folder in memory, where rings belong."""
    made = Path(f"/dev/shm/batchscope-doctor-{os.getpid()}-{time.monotonic_ns()}")
    made.mkdir(mode=0o700)
    yield made
    for path in sorted(made.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    made.rmdir()


def test_on_a_sound_machine_nothing_has_to_be_fixed(memory: Any) -> None:
    done = base("doctor", "--dir", memory, "--exporter", NOBODY)
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok ", "note ")) for line in lines)
    assert any("none listens here" in line for line in lines)
    said = as_json("doctor", "--dir", memory, "--exporter", NOBODY)
    assert said["ok"] is True
    assert [set(check) for check in said["checks"]] == [
        {"about", "status", "says", "fix"} for _ in lines
    ]


def test_something_to_be_fixed_is_exit_code_1(memory: Any) -> None:
    env = {"BATCHSCOPE_REQUEST_IDS": "secret"}
    said = as_json("doctor", "--dir", memory, "--exporter", NOBODY, env=env, code=1)
    assert said["ok"] is False
    (bad,) = (check for check in said["checks"] if check["status"] == "fix")
    assert bad["says"] == "BATCHSCOPE_REQUEST_IDS=secret is no mode, and means none"
    assert bad["fix"] == "set it to hash, plain or none"


def test_a_recording_engine_is_named_with_what_it_provides(memory: Any) -> None:
    with engine(memory, BATCHSCOPE="1") as child:
        until(lambda: list_rings(memory))
        found = list(places.residents(scene(memory)))
    assert told(found) == [("engine", "ok"), ("provides", "ok")]
    assert f"mini (pid {child.pid}" in found[0].says
    assert found[0].says.endswith("attached, members")
    assert re.search(r"fields: \d+ exact, \d+ absent \(arrived.external_key, ", found[1].says)


def test_a_dormant_engine_says_how_to_wake_it(memory: Any) -> None:
    with engine(memory):
        (found,) = places.residents(scene(memory))
    assert found.says.endswith(": dormant")
    assert found.fix == "`batchscope attach` switches it on"


def test_a_missing_seam_of_a_running_engine_is_to_be_fixed(memory: Any) -> None:
    provides = {"completed.at_ns": "exact", "seam:scheduler.preempt": "absent"}
    ring = RingWriter(memory, {"engine": "one", "provides": provides}, size=1 << 20)
    while not ring.grow():
        pass
    found = list(places.residents(scene(memory)))
    ring.close()
    assert told(found) == [("engine", "ok"), ("provides", "ok"), ("seams", "fix")]
    assert found[2].says.endswith("has no scheduler.preempt")
    assert told(places.residents(scene(memory))) == [("engine", "note"), ("engine", "note")]


def test_a_folder_on_disk_is_to_be_fixed(tmp_path: Any) -> None:
    if places.file_system(tmp_path) in ("tmpfs", None):
        pytest.skip("this machine's temporary folder is in memory")
    found = list(places.folder(scene(tmp_path)))
    assert told(found)[1] == ("folder", "fix")
    assert "in memory" in found[1].fix
    assert told(places.folder(scene(None))) == [("folder", "fix")]


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Any) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/x / ext4 rw 0 0\ntmpfs /a\\040b tmpfs rw 0 0\n")
    assert places.file_system(Path("/a b/c"), mounts=mounts) == "tmpfs"
    assert places.file_system(Path("/other"), mounts=mounts) == "ext4"
    assert places.file_system(Path("/other"), mounts=tmp_path / "none") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="being someone else needs root")
def test_a_folder_of_somebody_else_is_to_be_fixed(memory: Any) -> None:
    (memory / "ctl").mkdir()
    os.seteuid(65532)
    try:
        closed = next(iter(places.folder(scene(memory))))
        os.seteuid(0)
        memory.chmod(0o755)
        os.seteuid(65532)
        read_only = next(iter(places.folder(scene(memory))))
    finally:
        os.seteuid(0)
    assert (closed.status, read_only.status) == ("fix", "fix")
    assert "can't be read (uid 0, mode 700)" in closed.says
    assert "attach and detach can't ask" in read_only.says


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_folder_without_room_is_to_be_fixed(memory: Any) -> None:
    (memory / "small").mkdir()
    if os.system(f"mount -t tmpfs -o size=8m tmpfs {memory}/small 2>/dev/null"):
        pytest.skip("mounting is not permitted here")
    try:
        tight = list(places.folder(scene(memory / "small")))[-1]
        (memory / "small" / "filler").write_bytes(bytes((8 << 20) - 4096 * 8))
        full = list(places.folder(scene(memory / "small")))[-1]
        (memory / "small" / "filler").unlink()
    finally:
        os.system(f"umount {memory}/small")
    assert (tight.status, full.status) == ("note", "fix")
    assert "a new ring takes 2 MiB" in tight.says
    assert "--shm-size" in full.fix


def test_an_exporter_that_answers_and_one_that_does_not(tmp_path: Any) -> None:
    (away,) = checks.exporter(scene(tmp_path))
    assert (away.status, away.fix) == ("note", "start batchscope serve")
    with Served(tmp_path, token="s3cret") as served:
        url = str(served.http.base_url).rstrip("/")
        (found,) = checks.exporter(scene(tmp_path, URL=url, BATCHSCOPE_TOKEN="s3cret"))
        assert found.says == f"answers at {url}, follows 0 engines"
        (refused,) = checks.exporter(scene(tmp_path, URL=url))
        assert refused.status == "fix"
        assert "BATCHSCOPE_TOKEN" in refused.says
        (hidden,) = checks.exporter(scene(served.rings))
        assert hidden.fix == "say where it listens: --exporter URL"


def test_a_ring_that_the_exporter_refuses_is_to_be_fixed(tmp_path: Any) -> None:
    with Served(tmp_path) as served:
        (served.rings / "broken.ring").write_bytes(b"no ring")
        until(lambda: served.pipeline.refused)
        found = list(checks.exporter(scene(URL=str(served.http.base_url).rstrip("/"))))
    assert told(found) == [("exporter", "ok"), ("exporter", "fix")]
    assert "broken.ring is not a batchscope ring" in found[1].says


def test_somebody_else_on_the_port_is_no_exporter(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        other.close()
        assert told(checks.exporter(scene(URL=url))) == [("exporter", "note")]


def test_a_stepped_wall_clock_is_noticed_and_another_monotonic_clock_too(memory: Any) -> None:
    mono, wall = (lambda: 100 * S), (lambda: 1_000 * S)
    ring = RingWriter(memory, {}, mono=mono, wall=wall, size=1 << 20)
    while not ring.grow():
        pass

    def seen(mono: Any, wall: Any) -> Any:
        where = Scene({}, memory, NOBODY, mono=lambda: mono * S, wall=lambda: wall * S)
        return told(checks.clock(where))[1:]

    assert seen(150, 1_050) == []
    assert seen(150, 4_650) == [("clock", "note")]
    assert seen(50, 950) == [("clock", "fix")]
    ring.close()


def test_a_slow_clock_is_a_note() -> None:
    ticks = iter(range(0, 10**12, 2_000))
    found = next(iter(checks.clock(Scene({}, None, NOBODY, mono=lambda: next(ticks)))))
    assert found.status == "note"
    assert found.says.startswith("2001 ns a read") or found.says.startswith("2002 ns a read")


@pytest.mark.parametrize(("waited", "told"), [("94.10", "note"), ("12.00", "ok"), ("", None)])
def test_programs_that_wait_for_a_core_are_noticed(
    waited: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"some avg10=99.04 avg60={waited} avg300=65.70 total=12078394704" if waited else ""
    monkeypatch.setattr(checks, "text_of", lambda path: text if path == checks.PRESSURE else "")
    found = list(checks.cores(scene()))
    assert [one.status for one in found] == ([told] if told else [])
    assert all(f"waited for one {waited[:2]} % of the time" in one.says for one in found)
    assert [bool(one.fix) for one in found if one.status == "note"] == [True] * (told == "note")


@pytest.mark.parametrize(
    ("word", "status", "meaning"),
    [("1", "ok", "on from the start"), ("0", "note", "off"), ("", "ok", "dormant")],
)
def test_the_adapters_switch_is_explained(word: Any, status: Any, meaning: Any) -> None:
    found = list(checks.environment(scene(BATCHSCOPE=word)))[1]
    assert found.status == status
    assert meaning in found.says


@pytest.mark.parametrize("mode", ["hash", "plain", "none"])
def test_every_mode_of_request_ids_is_explained(mode: Any, tmp_path: Any) -> None:
    (found,) = checks.request_ids(scene(tmp_path, BATCHSCOPE_REQUEST_IDS=mode))
    assert found.status == "ok"
    assert checks.ID_MODES[mode] in found.says


SCHEDULER = """
class Scheduler:
    def __init__(self):
        self.requests, self.waiting = {}, []
        self.running: list = []
        self.kv_cache_manager = self.max_num_scheduled_tokens = None
        self.max_num_running_reqs = self.scheduler_config = self.cache_config = None
    def schedule(self, throttle_prefills=False): ...
    def update_from_output(self, scheduler_output, model_runner_output): ...
    def add_request(self, request): ...
    def finish_requests(self, ids, status, *, quiet=False): ...
    def _free_request(self, request, delay=False): ...
"""
POOL = """
class BlockPool:
    def __init__(self, num_gpu_blocks):
        self.num_gpu_blocks = num_gpu_blocks
        self.cached_block_hash_to_block = {}
    def get_num_free_blocks(self): ...
"""

FRONT_END = """
class OutputProcessor:
    def __init__(self, tokenizer):
        self.request_states = {}
    def add_request(self, request, prompt, parent=None): ...
    def process_outputs(self, outputs, stamp=None, stats=None): ...
"""


def package(folder: Any, scheduler: Any = SCHEDULER, pool: Any = POOL) -> Any:
    (folder / "v1/core/sched").mkdir(parents=True)
    (folder / installed.SCHEDULER).write_text(scheduler)
    (folder / installed.POOL).write_text(pool)
    return folder


def test_seams_are_found_in_source_that_is_never_run(tmp_path: Any) -> None:
    assert installed.lacking(package(tmp_path, "raise SystemExit\n" + SCHEDULER)) == []


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ("def add_request", "def enqueue", "Scheduler.add_request"),
        ("(self, request):", "(self, request, client):", "Scheduler.add_request"),
        ("quiet=False", "quiet", "Scheduler.finish_requests"),
        ("(self, throttle_prefills=False)", "(self, throttle)", "Scheduler.schedule"),
        ("self.running: list", "other.running: list", "Scheduler.running"),
        ("class Scheduler", "class Planner", "v1.core.sched.scheduler.Scheduler"),
    ],
)
def test_a_seam_that_is_gone_or_takes_other_arguments_is_named(
    tmp_path: Any, old: Any, new: Any, lacks: Any
) -> None:
    assert old in SCHEDULER
    assert installed.lacking(package(tmp_path, SCHEDULER.replace(old, new))) == [lacks]


@pytest.mark.parametrize(
    ("old", "new", "lacks"),
    [
        ("class Output", "class Input", "v1.engine.output_processor.OutputProcessor"),
        ("def add_request", "def enqueue", "OutputProcessor.add_request"),
        ("stamp=None, stats=None", "*, stamp=None", "OutputProcessor.process_outputs"),
        ("self.request_states", "self.states", "OutputProcessor.request_states"),
    ],
)
def test_a_seam_of_the_front_end_is_looked_for_too(
    tmp_path: Any, old: Any, new: Any, lacks: Any
) -> None:
    source = tmp_path / installed.FRONT_END
    source.parent.mkdir(parents=True)
    source.write_text(FRONT_END)
    assert installed.lacking_in_front(tmp_path) == []
    assert old in FRONT_END
    source.write_text(FRONT_END.replace(old, new))
    assert installed.lacking_in_front(tmp_path) == [lacks]


def test_a_pool_without_its_map_is_named(tmp_path: Any) -> None:
    renamed = POOL.replace("cached_block_hash_to_block", "hashes")
    found = installed.lacking(package(tmp_path, SCHEDULER, renamed))
    assert found == ["BlockPool.cached_block_hash_to_block"]


@pytest.mark.skipif(not [*SOURCES, *NATIVE], reason="no sources of vLLM here: make test-engines")
@pytest.mark.parametrize("source", [*SOURCES, *NATIVE], ids=lambda path: path.parent.name)
def test_every_real_vllm_has_all_that_the_adapter_needs(source: Any) -> None:
    assert installed.lacking(source) == installed.lacking_in_front(source) == []


def test_vllm_in_the_environment_is_looked_at_without_importing_it(tmp_path: Any) -> None:
    package(tmp_path / "vllm")
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    metadata = tmp_path / "vllm-0.99.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    env = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "VLLM_PLUGINS": "lora"}
    words = ("doctor", "--dir", "/dev/shm", "--exporter", NOBODY)
    said = {c["says"]: c for c in as_json(*words, env=env, code=1)["checks"]}
    unknown = next(c for says, c in said.items() if says.startswith("vLLM 0.99.0 is not one of"))
    assert unknown["fix"].startswith("it loads dormant")
    left_out = said["VLLM_PLUGINS=lora leaves batchscope out"]
    assert left_out["fix"] == "VLLM_PLUGINS=lora,batchscope"
    attributes = len(shape.FIELDS) + len(shape.POOL)
    assert (
        f"vLLM: all {len(shape.METHODS)} methods and {attributes} attributes are there,"
        " by name and signature"
    ) in said


def test_a_finding_is_one_line() -> None:
    from batchscope.exporter.cli.doctor import _line

    line = _line(Finding("folder", "fix", "no room", "make some"))
    assert line == "fix   folder       no room -> make some"
