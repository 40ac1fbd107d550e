"""The table of vLLM's versions: all that the engine tests know, each with its recount."""

from __future__ import annotations

import json
import re
from pathlib import Path

from docs import capabilities

ROOT = Path(__file__).parents[2]
KEPT = json.loads((ROOT / "docs/vllm_versions.json").read_text("utf-8"))


def test_every_version_of_the_makefile_has_a_row_and_so_has_the_installed_one() -> None:
    lists = re.findall(r"^VLLM\w* *=(.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = {version for line in lists for version in re.findall(r"\d+\.\d+\.\d+", line)}
    rows = [row[0] for row in capabilities.versions()[1]]
    assert set(rows) == set(KEPT) == named | {"0.32.0"}
    assert rows == sorted(rows, key=lambda version: [int(part) for part in version.split(".")])


def test_the_rings_sums_equal_the_recount() -> None:
    ours = {"arrived": "requests_arrived", "output": "output_tokens", "cached": "cached_tokens"}
    ours |= {"prefill": "prefill_tokens", "decode": "decode_tokens", "preempted": "preemptions"}
    for version, kept in KEPT.items():
        again = {name: kept[ours.get(name, name)] for name in kept["recount"]}
        assert again == kept["recount"], version
