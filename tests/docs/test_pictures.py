"""Pictures are there where a page names them, small, and made by scripts that still run."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from docs import paradox, pictures

from batchscope.schemas.ring import RingReader, list_rings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
NAMED = re.compile(r"!\[[^\]]+\]\((?:docs/)?(images/[^)]+)\)")
MOST_BYTES = 200_000


def test_every_picture_is_shown_and_every_shown_one_is_there_and_small() -> None:
    shown = {name for page in PAGES for name in NAMED.findall(page.read_text(encoding="utf-8"))}
    there = {f"images/{path.name}" for path in pictures.IMAGES.iterdir()}
    assert shown == there
    assert all((ROOT / "docs" / name).stat().st_size < MOST_BYTES for name in there)


def test_what_is_photographed_is_one_ring_for_each_engine_from_midnight_on(tmp_path: Path) -> None:
    names = pictures.recorded(tmp_path)
    readers = [RingReader(path) for path in list_rings(tmp_path)]
    assert sorted(reader.hello["engine"] for reader in readers) == sorted(names)
    assert {f"policy-{name}.png" for name in names} < {p.name for p in pictures.IMAGES.iterdir()}


def test_every_policy_has_its_point_and_its_name() -> None:
    both = {"saturated": {"tokens_per_s": 432.0}, "streamed": {"jitter": 1.0}}
    picture = paradox.drawn({"static": both, "chunked 256": both, "split, two engines": both})
    root = ET.fromstring(picture)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"static", "chunked 256", "split, two engines"} < set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 3


def test_more_tokens_are_further_right_and_more_jitter_is_higher() -> None:
    (x, y), (further, higher) = paradox.place(400, 1), paradox.place(800, 5)
    assert further - x == pytest.approx(400 / 1500 * 674, abs=0.2)
    assert y - higher == pytest.approx(4 / 12 * 348, abs=0.2)
