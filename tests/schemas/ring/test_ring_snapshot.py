"""A frozen ring reads like the ring did, for as long as was asked."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.schemas.ring.conftest import grow

from batchscope.schemas.ring import RingError, RingFormatError, RingReader, RingWriter
from batchscope.schemas.ring.snapshot import freeze, load, save

SIZE = 16 * 4096
S = 10**9


class Now:
    """A clock for both kinds of time."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def ring(tmp_path: Path, now: Now) -> Any:
    made = RingWriter(tmp_path / "rings", {"engine": "one"}, mono=now, wall=now, size=SIZE)
    grow(made)
    yield made
    made.close()


def write(ring: RingWriter, now: Now, *, seconds: int) -> None:
    """Four records of half a KiB a second: a segment of 4 KiB lasts two."""
    for _ in range(seconds * 4):
        ring.append(b"\x63" + bytes(503))
        now.ns += S // 4


def seqs(path: Path, *, unix_ns: int = 0) -> list[int]:
    reader = RingReader(path)
    reader.seek(unix_ns=unix_ns)
    found: list[int] = []
    while (raw := reader.poll()) is not None:
        assert not raw.is_loss
        found += raw.seqs
    reader.close()
    return found


def test_seek_goes_to_the_segment_of_an_instant_and_loses_nothing(
    ring: RingWriter, now: Now
) -> None:
    write(ring, now, seconds=10)
    everything = seqs(ring.path)
    assert everything == list(range(1, everything[-1] + 1))
    late = seqs(ring.path, unix_ns=6 * S)
    assert late == everything[-len(late) :]
    assert 16 <= len(late) < 16 + 8 + 8, "four seconds, at most a segment more, and its frames"
    assert seqs(ring.path, unix_ns=-1) == everything


@pytest.mark.parametrize("written", [10, 100], ids=["first lap", "after many laps"])
def test_the_last_seconds_come_back_and_older_segments_stay_out(
    ring: RingWriter, now: Now, tmp_path: Path, written: int
) -> None:
    write(ring, now, seconds=written)
    kept = freeze(ring.path, seconds=5, wall=now)
    save(kept, tmp_path / "s.zip")
    path, about = load(tmp_path / "s.zip", tmp_path)
    wanted = seqs(ring.path, unix_ns=now.ns - 5 * S)
    assert seqs(path) == wanted
    assert len(wanted) >= 20
    assert (about["alive"], about["seconds"], about["hello"]["engine"]) == (True, 5, "one")
    assert kept.data.count(0) > len(kept.data) // 2


def test_all_of_a_full_ring_comes_back_when_it_is_asked_for(
    ring: RingWriter, now: Now, tmp_path: Path
) -> None:
    write(ring, now, seconds=100)
    save(freeze(ring.path, seconds=1000, wall=now), tmp_path / "s.zip")
    assert seqs(load(tmp_path / "s.zip", tmp_path)[0]) == seqs(ring.path)


def test_of_a_dead_ring_the_time_counts_from_its_own_end(
    ring: RingWriter, now: Now, tmp_path: Path
) -> None:
    write(ring, now, seconds=10)
    wanted = seqs(ring.path, unix_ns=7 * S)
    ring.close()
    now.ns += 3600 * S
    frozen = freeze(ring.path, seconds=2, wall=now)
    save(frozen, tmp_path / "s.zip")
    assert frozen.about["alive"] is False
    found = seqs(load(tmp_path / "s.zip", tmp_path)[0])
    assert found[-1] == wanted[-1]
    assert 8 <= len(found) < 30


def test_a_file_is_private_and_never_replaced(ring: RingWriter, now: Now, tmp_path: Path) -> None:
    frozen = freeze(ring.path, seconds=5, wall=now)
    save(frozen, tmp_path / "s.zip")
    assert stat.S_IMODE((tmp_path / "s.zip").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        save(frozen, tmp_path / "s.zip")


def test_what_is_no_snapshot_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("snapshot.json", json.dumps({}))
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as file:
        file.writestr("snapshot.json", json.dumps({}))
        file.writestr("../evil.ring", b"")
    for name in ("text", "other.zip", "evil.zip"):
        with pytest.raises(RingFormatError, match="is not a snapshot"):
            load(tmp_path / name, tmp_path / "into")
    with pytest.raises(RingError):
        freeze(tmp_path / "text", seconds=1)
