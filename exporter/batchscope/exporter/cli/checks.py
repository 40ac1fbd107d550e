"""The doctor's checks beside folder and engines: this environment, the exporter, clock, privacy.

Each yields findings and never raises for what it finds.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from batchscope.exporter.cli import engines, exporter_client
from batchscope.exporter.cli.findings import Finding, Scene
from batchscope.exporter.cli.places import text_of
from batchscope.exporter.cli.spoken import duration, plural
from batchscope.schemas.request_keys import read_salt
from batchscope.schemas.ring import Resident, RingError, RingReader, roster
from batchscope.schemas.ring.folder import control_folder, is_held

ADAPTER_WORDS = {"1": "on from the start", "0": "off, not even loaded"}
ID_MODES = {
    "hash": "salted hashes",
    "plain": "in plain: whoever reads ring or store reads them",
    "none": "not recorded: `batchscope request` finds nothing",
}
PRESSURE = Path("/proc/pressure/cpu")
MOST_WAITING = 80
"""Percent. A vLLM whose processes spin on all cores was seen at 94, and an exporter beside it at a
fiftieth of a core."""
STEPPED_NS = 1_000_000_000
SLOW_CLOCK_NS = 500
"""The hooks read the clock seven times an iteration: at 1 us a read that is 7 us of it."""


def environment(scene: Scene) -> Iterator[Finding]:
    """Python here, and what BATCHSCOPE says here."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("batchscope", "ok", f"{version('batchscope')}, Python {python}, {sys.executable}")
    word = scene.env.get("BATCHSCOPE")
    says = f"BATCHSCOPE={word}" if word else "BATCHSCOPE is unset"
    meaning = ADAPTER_WORDS.get(word or "", "dormant until `batchscope attach`")
    cure = "unset it in the engine's environment" if word == "0" else ""
    yield Finding("adapter", "note" if word == "0" else "ok", f"{says}: {meaning}", cure)


def exporter(scene: Scene) -> Iterator[Finding]:
    """Whether one answers, and whether it reads all rings."""
    try:
        exporter_client.get(scene.url, "/readyz", env=scene.env)
        seen = exporter_client.get(scene.url, "/api/v1/engines", env=scene.env)
    except exporter_client.Unreachable:
        yield _nobody_answers(scene)
        return
    except exporter_client.Refused as why:
        yield Finding("exporter", "fix", f"{scene.url}: {why}", "see its log")
        return
    live = sum(one["state"] == "live" for one in seen["engines"])
    yield Finding("exporter", "ok", f"answers at {scene.url}, follows {plural(live, 'engine')}")
    for ring in seen["refused"]:
        cure = "use the same batchscope in engine and exporter"
        yield Finding("exporter", "fix", ring["reason"], cure)


def cores(_scene: Scene) -> Iterator[Finding]:
    """Whether programs get to a core when they want one, as Linux counts it."""
    found = re.search(r"some .*avg60=(\d+)", text_of(PRESSURE))
    if found is None:
        return
    waiting = int(found[1])
    says = f"{os.cpu_count()}; in the last minute programs waited for one {waiting} % of the time"
    late = waiting > MOST_WAITING
    cure = "exporter and dashboard lag behind: leave them a core (taskset, cpuset)"
    yield Finding("cores", "note" if late else "ok", says, cure if late else "")


def clock(scene: Scene) -> Iterator[Finding]:
    """What reading the clock costs, and whether the rings' clocks are ours."""
    cost = _clock_cost(scene.mono)
    source = text_of(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
    says = f"{cost:.0f} ns a read{f', source {source}' if source else ''}"
    slow = cost > SLOW_CLOCK_NS
    cure = "a machine whose clock source is tsc or kvm-clock makes the hooks cheaper"
    yield Finding("clock", "note" if slow else "ok", says, cure if slow else "")
    for one in roster(scene.folder) if scene.folder else []:
        if one.alive and one.ring:
            yield from _clock_of(one, scene)


def request_ids(scene: Scene) -> Iterator[Finding]:
    """How ids leave the engine, as this environment says."""
    mode = scene.env.get("BATCHSCOPE_REQUEST_IDS") or "hash"
    if mode not in ID_MODES:
        says = f"BATCHSCOPE_REQUEST_IDS={mode} is no mode, and means none"
        yield Finding("request ids", "fix", says, "set it to hash, plain or none")
        return
    salt = read_salt(scene.folder) if scene.folder else None
    known = (
        "" if mode == "none" else f"; the folder's salt is {'there' if salt else 'not made yet'}"
    )
    yield Finding("request ids", "ok", f"{ID_MODES[mode]}{known}")


def _nobody_answers(scene: Scene) -> Finding:
    lock = control_folder(scene.folder) / "exporter.lock" if scene.folder else None
    if lock and is_held(lock):
        says = f"one reads this folder, but nobody answers at {scene.url}"
        return Finding("exporter", "note", says, "say where it listens: --exporter URL")
    return Finding("exporter", "note", f"nobody answers at {scene.url}", "start batchscope serve")


def _clock_of(one: Resident, scene: Scene) -> Iterator[Finding]:
    assert one.ring is not None
    try:
        reader = RingReader(one.ring)
    except (OSError, RingError):
        return
    mono_ns, unix_ns = reader.clock_pair
    reader.close()
    passed = scene.mono() - mono_ns
    stepped = scene.wall() - unix_ns - passed
    if passed < 0:
        says = f"{engines.name(one)} has another monotonic clock than this process"
        yield Finding("clock", "fix", says, "run the exporter in the engine's time namespace")
    elif abs(stepped) > STEPPED_NS:
        says = f"the wall clock was set by {duration(stepped)} since {engines.name(one)} attached"
        yield Finding("clock", "note", says, "durations are not concerned; check NTP")


def _clock_cost(mono: Callable[[], int], *, reads: int = 2_000) -> float:
    """The best of five, ns a read."""
    best = float("inf")
    for _ in range(5):
        began = mono()
        for _ in range(reads):
            mono()
        best = min(best, (mono() - began) / reads)
    return best
