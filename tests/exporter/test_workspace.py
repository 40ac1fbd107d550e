"""The demo's folder: gone with it, and with the next command where it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from batchscope.exporter.cli import workspace

HOLD = """
from batchscope.exporter.cli.workspace import workspace
with workspace() as folder:
    print(folder, flush=True)
    input()
"""


def demo() -> tuple[subprocess.Popen[str], Path]:
    """A process with a demo's folder, and that folder."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_a_killed_demo_is_swept_and_a_living_one_is_not() -> None:
    killed, left = demo()
    alive, kept = demo()
    try:
        assert (left.is_dir(), kept.is_dir()) == (True, True)
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=20)
        (left / "rings").mkdir()
        assert left in workspace.sweep()
        assert (left.exists(), kept.is_dir()) == (False, True)
    finally:
        alive.communicate("\n", timeout=20)
    assert alive.returncode == 0
    assert not kept.exists()


def test_the_next_demo_sweeps_by_itself() -> None:
    killed, left = demo()
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=20)
    with workspace.workspace():
        assert not left.exists()


def test_folders_that_are_not_certainly_a_dead_demos_stay(tmp_path: Path) -> None:
    being_made = tmp_path / f"{workspace.PREFIX}1-a"
    being_made.mkdir()
    link = tmp_path / f"{workspace.PREFIX}1-b"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / workspace.LOCK).touch()
    link.symlink_to(tmp_path / "elsewhere")
    assert workspace.sweep(tmp_path) == []
    assert (being_made.is_dir(), link.exists()) == (True, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's folder needs root")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    theirs = tmp_path / f"{workspace.PREFIX}1-a"
    theirs.mkdir()
    (theirs / workspace.LOCK).touch()
    os.chown(theirs, 65532, -1)
    assert workspace.sweep(tmp_path) == []
    os.chown(theirs, 0, -1)
    assert workspace.sweep(tmp_path) == [theirs]
