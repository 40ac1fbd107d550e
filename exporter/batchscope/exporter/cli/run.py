"""`batchscope run -- vllm serve MODEL`: start a program with the adapter on, in our own place.

A program whose interpreter has no batchscope finds this one through PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from batchscope.exporter.cli import engines, importable
from batchscope.exporter.errors import ConfigError

PROBE_S = 60.0
_PROBE = "import batchscope.adapters, batchscope.schemas"
_NAMES = ("python", "pypy")


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags; all that follows the program belongs to it."""
    parser.add_argument("--name", metavar="NAME", help="the engine's label (BATCHSCOPE_ENGINE)")
    parser.add_argument(
        "--dormant", action="store_true", help="load only; `batchscope attach` switches it on"
    )
    engines.add_folder(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...")


def run(args: argparse.Namespace) -> int:
    """Become the program. ConfigError when that can't be."""
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise ConfigError("say what to run: batchscope run -- vllm serve MODEL")
    program = shutil.which(words[0])
    if program is None:
        raise ConfigError(f"there is no program {words[0]!r} that can be run")
    folder = engines.folder_of(args)
    env = environment(os.environ, folder, name=args.name, dormant=args.dormant)
    env = reachable(env, interpreter(Path(program)))
    state = "dormant" if args.dormant else "on"
    print(f"batchscope: {state} for {words[0]}, rings in {folder}", file=sys.stderr, flush=True)
    return _become(program, words, env)


def environment(
    env: Mapping[str, str], folder: Path, *, name: str | None, dormant: bool
) -> dict[str, str]:
    """The program's variables: adapter on (or dormant), ring folder, label, plugin allowed."""
    made = {k: v for k, v in env.items() if k != "BATCHSCOPE"} | {"BATCHSCOPE_DIR": str(folder)}
    if not dormant:
        made["BATCHSCOPE"] = "1"
    if name:
        made["BATCHSCOPE_ENGINE"] = name
    if "VLLM_PLUGINS" in env:  # an allow-list: unset means all
        allowed = [word for word in env["VLLM_PLUGINS"].split(",") if word]
        made["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*allowed, "batchscope"]))
    return made


def reachable(env: Mapping[str, str], python: str | None) -> dict[str, str]:
    """The same, with batchscope on PYTHONPATH unless this interpreter imports it anyway."""
    if python and _imports(python, env):
        return dict(env)
    path = [str(importable.folder(env)), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(path)}


def interpreter(program: Path) -> str | None:
    """The Python that runs a program, by its name or first line; None where that says nothing."""
    if program.name.startswith(_NAMES):
        return str(program)
    with program.open("rb") as file:
        first = file.readline(512)
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    if words[:1] and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not Path(words[0]).name.startswith(_NAMES):
        return None
    return shutil.which(words[0])


def _imports(python: str, env: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _PROBE], env=env, capture_output=True, timeout=PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _become(program: str, words: Sequence[str], env: Mapping[str, str]) -> int:
    try:
        os.execve(program, list(words), dict(env))  # noqa: S606
    except OSError as error:
        raise ConfigError(f"can't run {program}: {error.strerror}") from None
