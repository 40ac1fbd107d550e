"""Figures as a person reads them."""

import pytest

from batchscope.dashboard import words
from batchscope.dashboard.palette import KV, P50, P99, PHASES, REASONS, VERDICTS, reason_colour
from batchscope.schemas.reasons import DeferralReason, Verdict

MAIN_REASONS = ("token_budget", "max_requests", "kv_blocks", "preemption")
GLANCE = [*PHASES.values(), P50, P99, KV["used"], VERDICTS["met"], VERDICTS["missed"]]
GLANCE += [REASONS[reason] for reason in MAIN_REASONS]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0, "0 ns"),
        (12_300, "12.3 µs"),
        (22_400_000, "22.4 ms"),
        (1_240_000_000, "1.24 s"),
        (182_000_000, "182 ms"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: int | None, text: str) -> None:
    assert words.duration_text(ns) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0.0, "0 %"),
        (0.0002, "<0.1 %"),
        (0.061, "6.1 %"),
        (0.27, "27 %"),
        (1.0, "100 %"),
    ],
)
def test_a_small_share_is_never_shown_as_nothing(ratio: float | None, text: str) -> None:
    assert words.percent(ratio) == text


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ("tbt_p99<=200ms,ttft<=2000ms", "TTFT ≤ 2 s, TBT p99 ≤ 200 ms"),
        ("e2e<=1500ms", "E2E ≤ 1.5 s"),
        ("tpot<=0.0005ms", "TPOT ≤ 500 ns"),
        ("joy<=2s", "joy<=2s"),
    ],
)
def test_an_slo_is_named_by_its_terms(targets: str, text: str) -> None:
    assert words.slo(targets) == text


def test_ages_get_coarser_the_longer_they_are() -> None:
    ages = [words.age(seconds * 1e9) for seconds in (0.21, 100, 240, 3 * 3600, 12 * 86_400)]
    assert ages == ["0.2 s", "100.0 s", "4 min", "3 h", "12 days"]


def test_unknown_parts_have_no_share() -> None:
    assert words.share(None, 10) is None
    assert words.share(3, None) is None
    assert words.share(3, 0) is None
    assert words.share(3, 4) == 0.75


def test_counts_keep_small_fractions_and_shorten_millions() -> None:
    assert [words.count(v) for v in (None, 7, 7.25, 1234, 2_340_000)] == [
        "–",  # noqa: RUF001
        "7",
        "7.2",
        "1,234",
        "2.34 M",
    ]


def test_every_reason_and_verdict_has_a_colour_of_its_own() -> None:
    assert set(REASONS) == {reason.value for reason in DeferralReason}
    assert set(VERDICTS) == {verdict.value for verdict in Verdict}
    assert len(set(REASONS.values())) == len(REASONS)
    assert len(set(PHASES.values())) == len(PHASES)


def test_a_reason_of_a_newer_exporter_is_drawn_as_unknown() -> None:
    assert reason_colour("solar_flare") == REASONS["unknown"]
    assert words.reason("solar_flare") == "solar_flare"


@pytest.mark.parametrize("background", ["#ffffff", "#0e1117"])
@pytest.mark.parametrize("ink", GLANCE)
def test_what_is_told_apart_at_a_glance_stands_out_in_both_themes(
    ink: str, background: str
) -> None:
    lighter, darker = sorted((luminance(ink), luminance(background)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 3.0


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
