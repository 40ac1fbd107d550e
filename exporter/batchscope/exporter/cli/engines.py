"""The engines of a ring folder as a person names them: label, model, pid, or beginning of the ring.

Shared by the commands about running engines; standard library only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from batchscope.exporter.cli import processes
from batchscope.exporter.errors import BatchscopeError, ConfigError
from batchscope.schemas.reasons import Role
from batchscope.schemas.ring import Resident, ring_folder, roster

LEVELS = {"off": 0, "iterations": 1, "members": 2}
LEVEL_NAMES = {level: name for name, level in LEVELS.items()}
LEAST_PREFIX = 4
HOW_TO_LOAD = (
    "install batchscope in the engine's environment and start the engine again (it loads dormant),"
    " or start it by `batchscope run -- ...`"
)


class NobodyThere(BatchscopeError):  # noqa: N818 - an answer, not a fault
    """No engine listens in the folder."""


def add_folder(parser: argparse.ArgumentParser) -> None:
    """The flag that says where the rings are."""
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="folder of the rings (BATCHSCOPE_DIR)"
    )


def folder_of(args: argparse.Namespace) -> Path:
    """The folder named by a flag, that of the one process that is named, what the environment says,
    or this user's. ConfigError when there is none.
    """
    words = getattr(args, "engine", [])
    own = (
        processes.ring_folder_of(int(words[0])) if len(words) == 1 and words[0].isdigit() else None
    )
    folder: Path | None = args.dir or own or ring_folder(os.environ)
    if folder is None:
        raise ConfigError("there is no /dev/shm for rings here: name a folder with --dir")
    return folder


def living(folder: Path) -> list[Resident]:
    """Engines that can be told something; NobodyThere says how to get one."""
    found = [one for one in roster(folder) if one.alive]
    if not found:
        raise NobodyThere(f"no engine listens in {folder}{elsewhere(folder)}: {HOW_TO_LOAD}")
    return found


def chosen(residents: Sequence[Resident], words: Iterable[str]) -> list[Resident]:
    """Those that the words name, each once; ConfigError for a word that names none."""
    named = [one for word in words for one in _named(residents, word)]
    return list({one.ring_uuid: one for one in named}.values())


def matching(residents: Iterable[Resident], word: str) -> list[Resident]:
    """By pid (its own or a parent's), engine label, model, or at least 4 digits of the ring."""
    of_process = processes.family(int(word)) if word.isdigit() else set()
    return [one for one in residents if _answers_to(one, word, of_process)]


def name(resident: Resident) -> str:
    """`vllm rank 1 (pid 812, ring 3fa1b2c4)`, `vllm front end (pid 790, ring 77c0a5d1)`."""
    about = resident.about
    end = " front end" if is_front_end(resident) else ""
    rank = f" rank {about['dp_rank']}" if about.get("dp_rank") else ""
    pid = f"pid {about['pid']}, " if about.get("pid") else ""
    return f"{about.get('engine', 'an engine')}{end}{rank} ({pid}ring {resident.ring_uuid[:8]})"


def is_front_end(resident: Resident) -> bool:
    """Whether it is an API server, which has a ring of its own beside the engine's."""
    return bool(resident.about.get("role") == Role.FRONTEND.value)


def facts(resident: Resident) -> dict[str, Any]:
    """One engine as JSON says it; unknown is null."""
    about = resident.about
    known = ("engine", "kind", "version", "model_name", "role", "dp_rank", "pid")
    level = LEVEL_NAMES.get(resident.level) if resident.level is not None else None
    return {
        "ring": resident.ring_uuid,
        **{key: about.get(key) for key in known},
        "state": resident.state,
        "level": level,
    }


def elsewhere(folder: Path) -> str:
    """Where else engines may be, as a parenthesis of a sentence; nothing when nowhere."""
    memory = Path("/dev/shm")  # noqa: S108
    others = sorted(str(p) for p in memory.glob("batchscope-*") if p.is_dir() and p != folder)
    return f" (other folders: {', '.join(others)}; see --dir)" if others else ""


def _named(residents: Sequence[Resident], word: str) -> list[Resident]:
    if found := matching(residents, word):
        return found
    there = ", ".join(name(one) for one in residents)
    raise ConfigError(f"no engine answers to {word!r}; there: {there}")


def _answers_to(one: Resident, word: str, of_process: set[tuple[int, int]]) -> bool:
    about = one.about
    if (about.get("pid_ns"), about.get("pid")) in of_process:
        return True
    if word in (about.get("engine"), about.get("model_name")):
        return True
    return len(word) >= LEAST_PREFIX and one.ring_uuid.startswith(word.lower())
