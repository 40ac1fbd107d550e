"""Exporter and dashboard as a container runs them: no root, no network, nothing to write on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine_process import Load, hello

from batchscope.schemas.ring import RingWriter

UID = "65532"
ROOT = Path(__file__).parents[2]
JAIL = """
set -e
mount --make-rprivate /
{reach}
mount -t tmpfs -o mode=700,uid={uid},gid={uid} tmpfs {state}
mount --bind {rings}/ctl {rings}/ctl
mount -o remount,bind,ro /
{python} - <<'LO'
import fcntl, socket, struct
s = socket.socket()
fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
LO
cd {root}
export HOME={state} PYTHONDONTWRITEBYTECODE=1
exec setpriv --reuid {uid} --regid {uid} --clear-groups --bounding-set=-all --no-new-privs \\
    {python} -m tests.support.in_jail {rings} {state} {iterations}
"""


def reach(work: Any) -> Any:
    """Lets others through to a Python in a private home; in the jail's own mounts only."""
    base = Path(sys.base_prefix)
    closed = [p for p in [*reversed(base.parents), base] if not p.stat().st_mode & 0o001]
    if not closed:
        return ""
    (work / "python").mkdir()
    return (
        f"mount --bind {base} {work}/python; mount -t tmpfs -o mode=755 tmpfs {closed[0]};"
        f"mkdir -p {base}; mount --bind {work}/python {base}"
    )


@pytest.fixture
def outside() -> Any:
    """A folder that others may enter; pytest's own is private."""
    made = Path("/tmp") / f"batchscope-jail-{os.getpid()}"
    made.mkdir(mode=0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a jail needs root")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_exporter_and_dashboard_work_unprivileged_on_a_read_only_root(outside: Any) -> None:
    if subprocess.run(["unshare", "-mn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces are not permitted here")
    (outside / "state").mkdir()
    writer = RingWriter(outside / "rings", hello(1), group=UID)
    while not writer.grow():
        pass
    load = Load(writer, 1)
    for _ in range(100):
        load.step()
    names = {"uid": UID, "root": ROOT, "python": sys.executable, "iterations": 100}
    folders = {"state": outside / "state", "rings": outside / "rings"}
    script = JAIL.format(reach=reach(outside), **names, **folders)
    done = subprocess.run(
        ["unshare", "-mn", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    writer.close(unlink=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "uid": int(UID),
        "newest": 100,
        "metrics": True,
        "dashboard": "ok",
        "root_is_read_only": True,
        "rings_are_read_only": True,
    }
    assert "Traceback" not in done.stderr
