"""Every flag that a knob names is in the sources of the version named, and of none before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.engines.versions import NATIVE, PYTHON, ROOT, versions

from batchscope.schemas.knobs import KNOBS, Knob, numbers

pytestmark = pytest.mark.engines

NAMED = sorted({(knob.flag, knob.setting, knob.since) for knob in KNOBS if knob.engine == "vllm"})


def sources(version: str) -> Path:
    if version == NATIVE:
        return next((PYTHON.parents[1] / "lib").glob("python3.*")) / "site-packages"
    return ROOT / ".cache/vllm" / version


def flags(version: str) -> str:
    return (sources(version) / "vllm/engine/arg_utils.py").read_text()


def has(text: str, flag: str) -> bool:
    stem = flag.removeprefix("--no-").removeprefix("--")
    return re.search(rf"""["']--{re.escape(stem)}["']""", text) is not None


@pytest.mark.parametrize("version", versions())
def test_a_flag_is_there_from_its_first_version_on(version: str) -> None:
    text = flags(version)
    knobs: list[Knob] = [knob for knob in KNOBS if knob.engine == "vllm"]
    found = {knob.flag: has(text, knob.flag) for knob in knobs}
    assert found == {knob.flag: knob.exists_in(version) for knob in knobs}


@pytest.mark.parametrize(("flag", "setting", "since"), NAMED)
def test_its_value_is_where_hello_will_have_it(flag: str, setting: str, since: str) -> None:
    newest = max(versions(), key=numbers)
    folder = sources(newest) / "vllm/config"
    part, _, name = setting.partition(".")
    module = folder / f"{part.removesuffix('_config')}.py"
    assert re.search(rf"^    {name}\b.*:", module.read_text(), re.MULTILINE), (flag, since)
