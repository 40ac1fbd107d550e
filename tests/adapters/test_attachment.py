"""Attaching from a thread that doesn't step, and what the first step after a fork may do."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from tests.adapters.drivers import MiniDriver

from batchscope.adapters.boot import attach
from batchscope.schemas.ring import LEVEL_MEMBERS, list_rings, set_level
from batchscope.schemas.ring.folder import control_folder


class Hasty(dict[str, str]):
    """An environment that has somebody ask for records while the adapter still attaches."""

    def get(self, key: str, default: Any = None) -> Any:
        if key == "BATCHSCOPE_REQUEST_IDS":
            folder = Path(self["BATCHSCOPE_DIR"])
            (control,) = control_folder(folder).glob("*.ctl")
            set_level(folder, control.stem, LEVEL_MEMBERS)
        return super().get(key, default)


def test_what_is_asked_of_a_dormant_one_is_left_to_the_thread_that_steps(tmp_path: Path) -> None:
    driver = MiniDriver()
    engine = driver.engine()
    handle = attach(driver.adapter(), engine, Hasty(BATCHSCOPE_DIR=str(tmp_path)))
    assert handle.attached
    assert list(tmp_path.glob("*.growing")) == list_rings(tmp_path) == []
    driver.run(engine)
    assert len(list_rings(tmp_path)) == 1


def test_the_first_step_after_a_fork_opens_one_file(tmp_path: Path) -> None:
    driver = MiniDriver()
    engine = driver.engine()
    attach(driver.adapter(), engine, {"BATCHSCOPE_DIR": str(tmp_path)})
    driver.submit(engine, 0, random.Random(1))
    child = os.fork()
    if child == 0:
        os._exit(0 if opened_by(engine) == [".ctl"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(control_folder(tmp_path).glob("*.ctl"))) == 2


def opened_by(engine: Any) -> list[str]:
    """Suffixes of the files that a step opens. For a process that ends: a hook stays for good."""
    paths: list[str] = []
    sys.addaudithook(lambda event, args: paths.append(args[0]) if event == "open" else None)
    engine.step()
    return [os.path.splitext(path)[1] for path in paths]
