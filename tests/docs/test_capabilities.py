"""The tables of adapters.md tell what the adapters' data say, and all of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from docs import capabilities

from batchscope.adapters import mini, vllm
from batchscope.adapters.vllm.shape import Shape
from batchscope.schemas.knobs import KNOBS
from batchscope.schemas.reasons import MEANINGS, DeferralReason


def cells(table: capabilities.Table) -> dict[str, tuple[str, ...]]:
    return {row[0].strip("`"): row[1:] for row in table[1]}


def test_every_field_has_a_row_with_words_and_both_adapters() -> None:
    rows = cells(capabilities.fields_by_adapter())
    assert set(rows) == set(mini.PROVIDES) == set(vllm.PROVIDES)
    assert all(words for words, _, _ in rows.values())
    assert {how.partition(",")[0] for _, _, how in rows.values()} <= {
        "exact",
        "estimated",
        "absent",
    }


def test_a_condition_is_told_with_its_field() -> None:
    rows = cells(capabilities.fields_by_adapter())
    assert rows["arrived.lora"][1] == "exact, when LoRA is in use"
    assert rows["scheduled.schedule_ns"][1] == "exact"


@pytest.mark.parametrize("feature", [field.name for field in fields(Shape)])
def test_no_feature_of_a_vllm_changes_what_is_seen_without_a_word_about_it(feature: str) -> None:
    without: dict[str, Any] = {"str": "", "bool": False, "int": 0}
    kind = next(str(field.type) for field in fields(Shape) if field.name == feature)
    full, less = capabilities._provided(), capabilities._provided(**{feature: without[kind]})
    told = {name for condition in capabilities.CONDITIONS.values() for name in condition}
    assert full == less or feature in told


def test_every_reason_is_explained_and_every_flag_named() -> None:
    assert set(MEANINGS) == set(DeferralReason)
    assert list(cells(capabilities.reasons())) == [str(reason) for reason in DeferralReason]
    flags = {row[0].strip("`") for row in capabilities.knobs()[1]}
    assert flags == {knob.flag for knob in KNOBS if knob.engine == "vllm"}


def test_only_the_marked_parts_of_a_page_are_made() -> None:
    page = "before\n<!-- made: reasons -->\nstale words\n<!-- end -->\nafter\n"
    filled = capabilities.filled(page)
    assert filled.startswith("before\n<!-- made: reasons -->\n| reason |")
    assert filled.endswith("<!-- end -->\nafter\n")
    assert "stale words" not in filled
    assert capabilities.filled(filled) == filled
