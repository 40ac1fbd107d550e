"""Entering a process that has no batchscope: by Python 3.14's own door, and by a debugger's."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from tests.adapters.ring_records import records
from tests.support.commands import ROOT, base, environment, until

from batchscope.exporter.cli import injecting, processes
from batchscope.exporter.errors import BatchscopeError
from batchscope.schemas.ring import RingReader, list_rings

ENGINE = ROOT / "tests/support/bare_engine.py"
PYTHON314 = os.environ.get("BATCHSCOPE_PYTHON314") or shutil.which("python3.14")
PARTS = ("schemas", "adapters", "exporter", "engine")

needs_314 = pytest.mark.skipif(
    not PYTHON314, reason="no Python 3.14: none on PATH, none named by BATCHSCOPE_PYTHON314"
)
needs_injector = pytest.mark.skipif(
    importlib.util.find_spec("pyinjector") is None or platform.machine() != "x86_64",
    reason="the extra `inject` is not installed, or this is no x86-64",
)
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@contextmanager
def running(command: Sequence[object], folder: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process with a line for us; it ends by its own will, well and without a word of ours."""
    known = environment({"BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_RING_BYTES": "1000000", **env})
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        list(map(str, command)), env=known, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "running\n"
        yield child
        said, complaint = child.communicate("\n", timeout=30)
        assert (child.returncode, complaint) == (0, "")
        assert len(set(said.split())) <= 1, "submitted, and finished"
    finally:
        child.kill()
        child.communicate()


def engine(python: str, mode: str = "calm") -> tuple[list[object], dict[str, str]]:
    return [python, "-W", "error", ENGINE, mode], {"PYTHONPATH": str(ROOT / "engine")}


def attach(python: str, home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """The command under another Python, as if batchscope were installed there."""
    told = f"batchscope-{version('batchscope')}.dist-info"
    if not (home / told).exists():
        (home / told).symlink_to(Path(str(distribution("batchscope").locate_file(told))))
    found = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(map(str, [*(ROOT / part for part in PARTS), home, *filter(None, found)]))
    command = [python, "-W", "error", "-m", "batchscope.exporter.cli", "attach"]
    return subprocess.run(
        [*command, *map(str, words)],
        env=environment({"PYTHONPATH": path, "XDG_CACHE_HOME": str(home / "cache")}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def records_of(folder: Path) -> set[str]:
    return {record.name for path in list_rings(folder) for record in records(RingReader(path))}


@needs_314
def test_python_3_14_lets_us_into_an_engine_that_has_no_batchscope(tmp_path: Path) -> None:
    assert PYTHON314
    command, env = engine(PYTHON314)
    with running(command, tmp_path / "rings", **env) as child:
        done = attach(PYTHON314, tmp_path, child.pid)
        assert done.returncode == 0, done.stderr
        assert f"(pid {child.pid}, " in done.stdout
        assert "attached, records members" in done.stdout
        until(lambda: "completed" in records_of(tmp_path / "rings"))
        assert "was attached already" in attach(PYTHON314, tmp_path, child.pid).stdout


@needs_314
def test_a_process_without_an_engine_is_entered_and_said_to_have_none(tmp_path: Path) -> None:
    assert PYTHON314
    code = "import sys, time\nprint('running', flush=True)\nsys.stdin.readline()"
    busy = code.replace(
        "sys.stdin.readline()",
        "import select\nwhile not select.select([sys.stdin], [], [], 0.01)[0]: pass",
    )
    with running([PYTHON314, "-c", busy], tmp_path) as child:
        done = attach(PYTHON314, tmp_path, child.pid)
        assert (done.returncode, done.stdout) == (1, "")
        assert "runs no engine that is known" in done.stderr
    with running([PYTHON314, "-c", code], tmp_path) as child:
        done = attach(PYTHON314, tmp_path, child.pid, "--wait", "0.3")
        assert "has not let us in for 0.3 s" in done.stderr


@needs_injector
@needs_cc
@pytest.mark.parametrize("mode", ["calm", "busy"])
def test_injected_an_engine_records_and_loses_no_request(tmp_path: Path, mode: str) -> None:
    command, env = engine(bare(), mode)
    with running(command, tmp_path / "rings", **env) as child:
        done = attach(sys.executable, tmp_path, child.pid, "--inject", "--wait", 30)
        assert done.returncode == 0, done.stderr
        assert "attached, records members" in done.stdout
        until(lambda: mode == "busy" or "completed" in records_of(tmp_path / "rings"))


@needs_injector
@needs_cc
def test_a_parents_pid_will_do_where_the_engine_is_its_child(tmp_path: Path) -> None:
    command, env = engine(bare())
    shell = ["sh", "-c", '"$@"; exit $?', "sh", *command]
    with running(shell, tmp_path / "rings", **env) as child:
        done = attach(sys.executable, tmp_path, child.pid, "--inject", "--wait", 30)
        assert "attached, records members" in done.stdout, done.stderr


def bare() -> str:
    """This Python without its packages, batchscope among them."""
    found: str = sys._base_executable  # type: ignore[attr-defined]
    return found


@contextmanager
def process(*command: str, **env: str) -> Iterator[int]:
    """A process that is killed at the end; its pid."""
    child = subprocess.Popen(command, env=environment(env), stdin=subprocess.PIPE)
    try:
        yield child.pid
    finally:
        child.kill()
        child.communicate()


SPIN = "while True: pass"
SLEEP = "import threading\nthreading.Thread(target=input).start()\nthreading.Event().wait()"


def test_a_thread_that_runs_or_waits_for_a_lock_is_never_stopped() -> None:
    """It may be inside the allocator, which the loading of a library needs."""
    with process(bare(), "-c", SPIN) as pid:
        until(lambda: processes.is_python(pid))
        assert list(injecting.waiting(pid)) == []
    with process(bare(), "-c", SLEEP) as pid:
        until(lambda: len(list((processes.PROC / f"{pid}/task").iterdir())) == 2)
        assert list(injecting.waiting(pid)) == []


def test_a_thread_that_sleeps_may_be() -> None:
    with process(bare(), "-c", "import time; time.sleep(60)") as pid:
        assert until(lambda: list(injecting.waiting(pid))) == [pid]


@needs_injector
@needs_cc
def test_where_no_thread_sleeps_the_process_is_left_alone(tmp_path: Path) -> None:
    with process(bare(), "-c", SPIN) as pid:
        with pytest.raises(BatchscopeError, match="it is left alone"):
            injecting.inject(pid, tmp_path / "script", seconds=0.1)
        assert not (tmp_path / "script").exists()


@needs_cc
def test_what_is_loaded_runs_the_script_on_a_thread_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "quoted ' name.py"
    script.write_text("import threading\nprint(threading.current_thread().name)\ndone.set()\n")
    library = injecting.build(script, tmp_path)
    code = (
        "import builtins, ctypes, sys, threading\n"
        "builtins.done = threading.Event()\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "assert done.wait(20)\n"
    )
    done = subprocess.run([bare(), "-c", code, library], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Dummy")


@needs_cc
def test_loaded_into_what_is_no_python_it_does_nothing(tmp_path: Path) -> None:
    library = injecting.build(tmp_path / "never read", tmp_path)
    env = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(["true"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_compiler_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BatchscopeError, match="there is no cc on PATH"):
        injecting.build(tmp_path / "script", tmp_path)


def refusal(pid: int, folder: Path, *words: str, code: int) -> str:
    """The one line that the command says."""
    done = base("attach", pid, *words, "--dir", folder, code=code)
    (line,) = done.stderr.splitlines()
    return str(line)


def test_the_extra_that_is_missing_is_named(tmp_path: Path) -> None:
    with process(bare(), "-c", "import time; time.sleep(60)") as pid:
        until(lambda: processes.is_python(pid))
        said = refusal(pid, tmp_path, "--inject", code=2)
        assert "pip install 'batchscope[inject]'" in said


def test_who_said_no_is_not_entered(tmp_path: Path) -> None:
    with process(bare(), "-c", "import time; time.sleep(60)", BATCHSCOPE="0") as pid:
        said = refusal(pid, tmp_path, "--inject", code=2)
        assert f"process {pid} was started with BATCHSCOPE=0" in said


def test_what_is_no_python_is_not_entered(tmp_path: Path) -> None:
    with process("sleep", "60") as pid:
        until(lambda: processes.command_line(pid) == b"sleep\x0060\x00")
        assert f"process {pid} is no Python" in refusal(pid, tmp_path, "--inject", code=1)


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_a_process_with_files_of_its_own_is_told_to_install_it_there(tmp_path: Path) -> None:
    inside = "mount -t tmpfs tmpfs /tmp && exec sleep 60"
    with process("unshare", "--mount", "sh", "-c", inside) as pid:
        until(lambda: processes.command_line(pid) == b"sleep\x0060\x00")
        said = refusal(pid, tmp_path, "--inject", code=2)
        assert "has files of its own (a container?)" in said
        assert "install batchscope in the engine's environment" in said
