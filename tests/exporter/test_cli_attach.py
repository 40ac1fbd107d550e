"""attach and detach against engines that run: what they do, and what they say."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import records
from tests.support.commands import ROOT, as_json, base, engine, environment, until

from batchscope.exporter.cli import entering, processes
from batchscope.schemas.ring import RingReader, list_rings, pid_namespace, roster


def said(done: Any) -> Any:
    lines = (done.stdout + done.stderr).splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def names(folder: Any) -> Any:
    """Names of all records of the folder's only ring."""
    (path,) = list_rings(folder)
    return [record.name for record in records(RingReader(path))]


def test_a_dormant_engine_is_attached_by_its_pid_and_then_records(tmp_path: Any) -> None:
    with engine(tmp_path) as child:
        assert list_rings(tmp_path) == []
        line = said(base("attach", child.pid, "--dir", tmp_path))
        assert line.startswith(f"mini (pid {child.pid}, ring ")
        assert line.endswith("attached, records members; `batchscope serve` reads it")
        until(lambda: "completed" in names(tmp_path))


def test_attached_detached_and_attached_again_by_label_ring_and_all(tmp_path: Any) -> None:
    with engine(tmp_path, BATCHSCOPE_ENGINE="blue"):
        (one,) = as_json("attach", "blue", "--dir", tmp_path)["engines"]
        assert (one["outcome"], one["state"], one["level"]) == ("attached", "attached", "members")
        (one,) = as_json("detach", one["ring"][:6], "--dir", tmp_path)["engines"]
        assert (one["outcome"], one["state"], one["level"]) == ("detached", "dormant", "off")
        assert names(tmp_path)[-1] == "bye"
        (one,) = as_json("attach", "--all", "--level", "iterations", "--dir", tmp_path)["engines"]
        assert (one["outcome"], one["level"]) == ("attached", "iterations")
        assert "scheduled" in names(tmp_path)[names(tmp_path).index("bye") :]


def test_what_is_so_already_is_said_at_once(tmp_path: Any) -> None:
    with engine(tmp_path, BATCHSCOPE="1"):
        assert "was attached already" in said(base("attach", "mini", "--dir", tmp_path))
        base("detach", "mini", "--dir", tmp_path)
        assert "was dormant already" in said(base("detach", "mini", "--dir", tmp_path))


def test_an_idle_engine_is_asked_and_the_line_says_that_nothing_came(tmp_path: Any) -> None:
    with engine(tmp_path, "idle"):
        line = said(base("attach", "--all", "--wait", "0.2", "--dir", tmp_path))
        assert line.endswith("nothing recorded in 0.2 s: it begins with its next iteration")
        (one,) = as_json("attach", "--list", "--dir", tmp_path)["engines"]
        assert one["state"] == "waking"


def test_an_engine_that_stands_still_has_not_answered_yet(tmp_path: Any) -> None:
    with engine(tmp_path, BATCHSCOPE="1") as child:
        until(lambda: "completed" in names(tmp_path))
        child.send_signal(signal.SIGSTOP)
        try:
            line = said(base("detach", "--all", "--wait", "0.2", "--dir", tmp_path))
            assert line.endswith("asked; it stops with its next iteration, none came in 0.2 s")
            (one,) = as_json("attach", "--all", "--wait", "0.2", "--dir", tmp_path)["engines"]
            assert one["outcome"] == "asked"
            line = said(base("detach", "--all", "--for-good", "--wait", "0", "--dir", tmp_path))
            assert "asked" in line
        finally:
            child.send_signal(signal.SIGCONT)
        until(lambda: names(tmp_path)[-1] == "bye")


def test_detached_for_good_its_own_functions_are_back_and_nobody_listens(tmp_path: Any) -> None:
    with engine(tmp_path, BATCHSCOPE="1") as child:
        line = said(base("detach", child.pid, "--for-good", "--dir", tmp_path))
        assert "its own functions are back" in line
        assert names(tmp_path)[-2:] == ["notice", "bye"]
        line = said(base("attach", "--all", "--dir", tmp_path, code=1))
        assert line.startswith(f"batchscope: no engine listens in {tmp_path}")


def test_the_engine_goes_on_all_the_while(tmp_path: Any) -> None:
    with engine(tmp_path) as child:
        for _ in range(2):
            base("attach", "--all", "--dir", tmp_path)
            base("detach", "--all", "--dir", tmp_path)
        child.stdin.close()
        assert int(child.stdout.read()) > 0
        assert child.wait(20) == 0


def test_an_engine_that_gives_up_is_a_failure(tmp_path: Any) -> None:
    """Its ring can't be made: somebody took the name."""
    with engine(tmp_path):
        (control,) = (tmp_path / "ctl").glob("*.ctl")
        (tmp_path / f"{control.stem}.growing").touch()
        line = said(base("attach", "--all", "--dir", tmp_path, code=1))
        assert "it left instead" in line


def test_the_list_shows_who_is_there_in_any_state(tmp_path: Any) -> None:
    with engine(tmp_path) as child:
        head, row = base("attach", "--list", "--dir", tmp_path).stdout.splitlines()
        assert head.split() == [
            *("ring", "engine", "kind", "version", "model", "role", "dp_rank", "pid", "state")
        ]
        assert row.split()[1:] == [
            *("mini", "mini", "0.1.0", "mini-cost", "both", "0", str(child.pid), "dormant")
        ]
    said_ = said(base("attach", "--list", "--dir", tmp_path / "empty", code=1))
    assert "batchscope run -- ..." in said_


@pytest.mark.parametrize(
    ("words", "code", "words_said"),
    [
        (["attach"], 2, "name an engine"),
        (["attach", "x", "--all"], 2, "name an engine"),
        (["detach"], 2, "name an engine"),
        (["attach", "--all", "--level", "off"], 2, "invalid choice: 'off'"),
        (["attach", "--all"], 1, "it loads dormant"),
        (["detach", "--all"], 1, "it loads dormant"),
    ],
)
def test_a_mistake_is_one_sentence(words: Any, code: Any, words_said: Any, tmp_path: Any) -> None:
    done = base(*words, "--dir", tmp_path, code=code)
    assert done.stdout == ""
    assert words_said in said(done)


def test_a_name_that_nobody_has_is_answered_by_who_is_there(tmp_path: Any) -> None:
    with engine(tmp_path) as child:
        line = said(base("attach", "green", "--dir", tmp_path, code=2))
        assert line.startswith("batchscope: no engine answers to 'green'; there: mini (pid ")
        assert str(child.pid) in line


def test_a_process_without_batchscope_needs_a_newer_python(tmp_path: Any) -> None:
    if hasattr(sys, "remote_exec"):
        pytest.skip("this Python can enter a process")
    with engine(tmp_path, "bare") as child:
        line = said(base("attach", child.pid, "--dir", tmp_path, code=2))
        assert f"no engine of process {child.pid} listens in {tmp_path}" in line
        assert "needs Python 3.14 on both sides" in line


STEPPING = """
import sys
from tests.support import mini_engine
steps = 0
def told_to_stop():
    global steps
    steps += 1
    if steps == 30:
        exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), {})
    return steps == 60
mini_engine.told_to_stop = told_to_stop
mini_engine.main("bare")
"""


def test_the_script_that_enters_finds_the_engine_and_leaves_it_dormant(tmp_path: Any) -> None:
    """As `sys.remote_exec` would run it: on the main thread, between two steps."""
    script = entering.write_script(os.getpid(), tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", STEPPING, str(script)],
        cwd=ROOT,
        env=environment({"BATCHSCOPE": "0"}) | {"BATCHSCOPE": ""},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (one,) = roster(tmp_path)
    assert (one.about["kind"], one.state, one.level) == ("mini", "gone", 0)
    assert not script.exists()


def test_a_parents_pid_means_its_children_too() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        family = until(lambda: len(found := processes.family(child.pid)) == 2 and found)
    finally:
        child.communicate(b"\n", timeout=20)
    assert (pid_namespace("self"), child.pid) in family
    assert child.pid not in {pid for _, pid in processes.family(child.pid)}


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace needs root")
def test_an_engine_in_a_pid_namespace_answers_to_its_pid_outside(tmp_path: Any) -> None:
    inside = [sys.executable, "-m", "tests.support.mini_engine"]
    env = environment({"BATCHSCOPE_DIR": str(tmp_path)})
    child = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *inside],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        if child.stdout.readline() != b"running\n":
            pytest.skip("pid namespaces are not permitted here")
        (one,) = roster(tmp_path)
        assert one.about["pid"] == 1, "what it is called in its own namespace"
        assert "attached" in said(base("attach", child.pid, "--dir", tmp_path))
    finally:
        child.kill()
        child.communicate(timeout=20)


def test_the_folder_of_a_named_process_needs_no_flag(tmp_path: Any) -> None:
    with engine(tmp_path / "its own") as child:
        env = {"BATCHSCOPE_DIR": str(tmp_path / "another")}
        assert "attached" in said(base("attach", child.pid, env=env))
        (one,) = as_json("detach", child.pid, env=env)["engines"]
        assert one["outcome"] == "detached"


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace needs root")
def test_an_engine_with_a_memory_of_its_own_is_reached_through_its_root() -> None:
    inside = f"mount -t tmpfs tmpfs /dev/shm && exec {sys.executable} -m tests.support.mini_engine"
    child = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", inside],
        cwd=ROOT,
        env=environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        if child.stdout.readline() != b"running\n":
            pytest.skip("mount namespaces are not permitted here")
        core = until(lambda: processes.children_of(child.pid))[0]
        folder = processes.ring_folder_of(core)
        assert folder == Path(f"/proc/{core}/root/dev/shm/batchscope-{os.getuid()}")
        assert "attached" in said(base("attach", core))
    finally:
        child.kill()
        child.communicate(timeout=20)


def test_of_no_process_there_is_no_folder() -> None:
    assert processes.ring_folder_of(2**22 + 1) is None


def test_another_folder_is_named_where_there_are_others(tmp_path: Any) -> None:
    from batchscope.exporter.cli import engines

    other = Path(f"/dev/shm/batchscope-test-{os.getpid()}")
    other.mkdir()
    try:
        assert str(other) in engines.elsewhere(tmp_path)
        assert str(other) not in engines.elsewhere(other)
    finally:
        other.rmdir()
