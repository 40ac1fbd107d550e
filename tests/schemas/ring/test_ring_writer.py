"""The writing half: what it makes, what it refuses, and that it never harms who calls it."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.schemas.ring.test_ring_reader import bodies, everything, finished, kind

import batchscope.schemas
from batchscope.schemas.records import BYE, SEGMENT
from batchscope.schemas.ring import RingReader, RingUnavailable, RingWriter, framed

Open = Callable[..., RingReader]


def test_nothing_is_made_before_the_first_grow(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "rings", {})
    assert not (tmp_path / "rings").exists()
    assert not ring.ready


def test_each_call_allocates_one_segment_and_the_last_shows_the_ring(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {}, size=1 << 20)
    sizes = []
    for _ in range(15):
        assert not ring.grow()
        assert not ring.path.exists()
        (growing,) = tmp_path.glob("*.growing")
        sizes.append(growing.stat().st_blocks * 512)
    assert ring.grow()
    assert ring.grow()
    # a file system's own blocks may come on top
    assert {(b - a) // (64 << 10) for a, b in pairwise(sizes)} == {1}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [ring.path.name]
    ring.close()


def test_every_byte_of_the_file_is_really_allocated(writer: RingWriter) -> None:
    seen = writer.path.stat()
    assert seen.st_blocks * 512 >= seen.st_size


def test_no_write_of_the_first_lap_meets_a_page_that_is_not_there(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {}, size=4 << 20)
    while not ring.grow():
        pass
    body = bytes(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while ring.segment < 15:
        ring.append(body)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    ring.close()
    assert faults < 100, "1,024 pages"


def test_size_is_a_quarter_of_what_is_free_within_bounds(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {})
    ring.grow()
    room = os.statvfs(tmp_path)
    free = room.f_bavail * room.f_frsize + (1 << 20)
    assert 1 << 20 <= ring.largest * 4 * 16 <= min(16 << 20, max(1 << 20, free // 4))
    ring.close()


def test_the_largest_record_fits_and_a_larger_one_changes_nothing(
    writer: RingWriter, open_reader: Open
) -> None:
    writer.append(bytes(writer.largest - 16))
    with pytest.raises(ValueError, match="the largest is"):
        writer.append(bytes(writer.largest - 15))
    writer.append(finished(1))
    (raw,) = everything(open_reader(writer.path))
    assert [len(b) for b in bodies(raw)[1:]] == [writer.largest - 16, len(finished(1))]


def test_reserve_opens_a_segment_only_when_the_sum_does_not_fit(writer: RingWriter) -> None:
    sizes = [len(finished(1)), 13, writer.largest - 16]
    need = sum(map(framed, sizes))
    for _ in range(200):
        before = writer.segment
        switched = writer.reserve(need)
        assert switched == (writer.segment == before + 1)
        for size in sizes:
            writer.append(bytes(size))
        assert writer.segment == before + switched
    assert writer.segment > 16


def test_a_segment_states_the_next_iteration_and_the_clocks_of_its_own_begin(
    tmp_path: Path, open_reader: Open
) -> None:
    now = [1000]
    ring = RingWriter(tmp_path, {}, size=1, mono=lambda: now[0], wall=lambda: now[0] + 7)
    while not ring.grow():
        pass
    ring.iteration_id, now[0] = 42, 2000
    while ring.segment == 0:
        ring.append(finished(1))
    (raw,) = everything(open_reader(ring.path))
    ring.close()
    opened = [SEGMENT.struct.unpack(b)[2:] for b in bodies(raw) if kind(b) == SEGMENT.kind]
    assert opened == [(1000, 1007, 1, 0, 0), (2000, 2007, 42, 0, 1)]


def test_an_exception_leaves_seq_and_head_where_they_were(
    writer: RingWriter, open_reader: Open
) -> None:
    reader = open_reader(writer.path)
    everything(reader)
    with pytest.raises(TypeError):
        writer.append(None)  # type: ignore[arg-type]
    writer.iteration_id = "none"  # type: ignore[assignment]
    with pytest.raises(Exception, match="integer"):
        writer.reserve(1 << 30)  # the clock pair is taken, the SEGMENT can't be packed
    writer.iteration_id = 1
    assert reader.poll() is None
    writer.append(finished(5))
    assert [bodies(raw) for raw in everything(reader)] == [[finished(5)]]


def test_a_closed_ring_refuses_and_stays_for_its_reader(
    writer: RingWriter, open_reader: Open
) -> None:
    writer.append(BYE.struct.pack(BYE.kind, 0, 1))
    writer.close()
    writer.close()
    assert not writer.ready
    with pytest.raises(RingUnavailable):
        writer.append(finished(1))
    reader = open_reader(writer.path)
    assert not reader.alive()
    assert len(everything(reader)) == 1


def test_close_can_remove_the_file(writer: RingWriter) -> None:
    writer.close(unlink=True)
    assert not writer.path.exists()


def test_reading_in_the_same_process_does_not_drop_the_lock(
    writer: RingWriter, open_reader: Open
) -> None:
    RingReader(writer.path).close()
    watching = f"""
import sys; from pathlib import Path; from batchscope.schemas.ring import RingReader
print(RingReader(Path({str(writer.path)!r})).alive())
"""
    assert _python(watching) == "True"
    writer.close()
    assert _python(watching) == "False"


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path / "rings", {}, size=1)
    while not ring.grow():
        pass
    assert stat.S_IMODE((tmp_path / "rings").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "rings" / "ctl").stat().st_mode) == 0o700
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o600
    ring.close()


@pytest.mark.parametrize("how", ["named", "setgid"])
def test_a_shared_folder_lets_its_group_read(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "rings"
    if how == "setgid":
        folder.mkdir()
        folder.chmod(0o2750)
    group = str(os.getgid()) if how == "named" else None
    ring = RingWriter(folder, {}, size=1, group=group)
    while not ring.grow():
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o2750
    assert stat.S_IMODE((folder / "ctl").stat().st_mode) == 0o2770
    assert stat.S_IMODE(ring.path.stat().st_mode) == 0o640
    ring.close()


def test_a_group_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RingUnavailable, match="BATCHSCOPE_GROUP names no group: no-such-group"):
        RingWriter(tmp_path / "rings", {}, group="no-such-group").grow()


def test_links_are_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(RingUnavailable, match="links are not followed"):
        RingWriter(tmp_path / "link", {}).grow()
    ring = RingWriter(real, {}, size=1)
    ring.path.with_suffix(".growing").symlink_to(tmp_path / "target")
    with pytest.raises(RingUnavailable):
        ring.grow()
    assert not (tmp_path / "target").exists()


def test_a_folder_that_can_not_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RingUnavailable, match="File exists"):
        RingWriter(tmp_path / "file" / "rings", {}).grow()


def test_a_hello_that_is_not_json_is_unavailable_not_a_fault(tmp_path: Path) -> None:
    ring = RingWriter(tmp_path, {("a", "b"): 1}, size=1)  # type: ignore[dict-item]
    for _ in range(15):
        ring.grow()
    with pytest.raises(RingUnavailable):
        ring.grow()
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_pack_into_is_used_nowhere_in_the_engine_process() -> None:
    """It clears before it stores: 49,323 torn reads of 13.6 million where slices had none."""
    root = Path(batchscope.schemas.__file__).parents[3]
    sources = [*root.glob("schemas/**/*.py"), *root.glob("adapters/**/*.py")]
    assert len(sources) > 5
    assert [path for path in sources if "pack_into(" in path.read_text()] == []


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
