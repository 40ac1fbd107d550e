"""`batchscope run`: the program starts as if alone, with the adapter on and within reach."""

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import base

from batchscope.exporter.cli import importable, run

SHOW = """
import os
names = ("BATCHSCOPE", "BATCHSCOPE_DIR", "BATCHSCOPE_ENGINE", "VLLM_PLUGINS")
print([os.environ.get(name) for name in names])
"""
FIND = """
import importlib.metadata as m, sys
from batchscope.adapters import mini
import batchscope.engine.engine, batchscope.schemas.ring
points = [p.value for p in m.distribution("batchscope").entry_points]
print(m.version("batchscope"), points, [n for n in ("numpy", "pytest") if n in sys.modules])
try:
    import pytest
except ImportError:
    print("alone")
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: Any) -> Any:
    """An interpreter that has nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


def test_the_program_runs_in_our_place_with_the_adapter_on(tmp_path: Any) -> None:
    words = ("run", "--name", "blue", "--dir", tmp_path, "--", sys.executable, "-c", SHOW)
    done = base(*words, env={"VLLM_PLUGINS": "lora"})
    assert done.stdout == f"['1', '{tmp_path}', 'blue', 'lora,batchscope']\n"
    assert done.stderr == f"batchscope: on for {sys.executable}, rings in {tmp_path}\n"


def test_dormant_leaves_the_word_to_attach(tmp_path: Any) -> None:
    words = ("run", "--dormant", "--dir", tmp_path, sys.executable, "-c", SHOW)
    done = base(*words, env={"BATCHSCOPE": "0"})
    assert done.stdout == f"[None, '{tmp_path}', None, None]\n"


@pytest.mark.parametrize("dashes", [["--"], []])
def test_flags_after_the_program_are_its_own_and_so_is_its_exit_code(
    tmp_path: Any, dashes: Any
) -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(7)"
    program = (sys.executable, "-c", code, "serve", "--json", "--name", "x")
    done = base("run", "--dir", tmp_path, *dashes, *program, code=7)
    assert done.stdout == "['serve', '--json', '--name', 'x']\n"


def test_an_interpreter_without_batchscope_gets_it_and_nothing_else(
    tmp_path: Any, bare_python: Any
) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ""}
    done = base("run", "--dir", tmp_path, "--", bare_python, "-c", FIND, env=env)
    said, alone = done.stdout.splitlines()
    assert said.endswith(" []")
    assert "'batchscope.exporter.cli:main'" in said
    assert alone == "alone"


def test_a_script_is_looked_at_for_its_interpreter(tmp_path: Any, bare_python: Any) -> None:
    script = tmp_path / "serve"
    script.write_text(f"#!{bare_python}\nfrom batchscope.adapters import mini\nprint('found')\n")
    script.chmod(0o755)
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    assert base("run", "--dir", tmp_path, "--", script, env=env).stdout == "found\n"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (f"#!{sys.executable} -I", sys.executable),
        ("#!/usr/bin/env -S A=1 python3", "python3"),
        ("#!/bin/sh", None),
        ("#!", None),
        ("\x7fELF", None),
        ("#!/no/such/python3", None),
    ],
)
def test_the_first_line_names_the_interpreter(tmp_path: Any, first: Any, expected: Any) -> None:
    (tmp_path / "program").write_text(f"{first}\n")
    found = run.interpreter(tmp_path / "program")
    assert found is None if expected is None else Path(found or "").name.startswith("python")


def test_what_is_on_the_path_already_stays(tmp_path: Any, bare_python: Any) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": "/there"}
    made = run.reachable(env, str(bare_python))
    ours, theirs = made["PYTHONPATH"].split(os.pathsep)
    assert (theirs, Path(ours).parent) == ("/there", tmp_path / "batchscope")
    assert run.reachable({**os.environ}, sys.executable) == dict(os.environ)


def test_the_folder_is_made_once_and_again_when_it_is_broken(tmp_path: Any) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    made = importable.folder(env)
    assert importable.folder(env) == made
    assert sorted(path.name for path in (made / "batchscope").iterdir()) == sorted(importable.PARTS)
    (made / "batchscope" / "schemas").unlink()
    again = importable.folder(env)
    assert (again / "batchscope" / "schemas" / "ring").is_dir()


def test_without_a_home_to_write_in_a_temporary_folder_serves(tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    made = importable.folder({"XDG_CACHE_HOME": str(tmp_path / "file")})
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import batchscope.adapters.mini"],
        env={"PYTHONPATH": str(made)},
        check=False,
    )
    assert done.returncode == 0
    assert made.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say what to run"),
        (["--"], "say what to run"),
        (["--", "no-such-program"], "there is no program 'no-such-program'"),
        (["--", "/etc/passwd"], "there is no program '/etc/passwd' that can be run"),
    ],
)
def test_a_mistake_is_one_sentence(words: Any, said: Any, tmp_path: Any) -> None:
    done = base("run", "--dir", tmp_path, *words, code=2)
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_file_that_is_no_program_is_one_sentence(tmp_path: Any) -> None:
    (tmp_path / "nothing").write_bytes(b"\0\0")
    (tmp_path / "nothing").chmod(0o755)
    done = base("run", "--dir", tmp_path, "--", tmp_path / "nothing", code=2)
    assert "can't run" in done.stderr.splitlines()[-1]
