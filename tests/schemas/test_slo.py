"""SLOs as text: what is stored says exactly what was judged by."""

import pytest

from batchscope.schemas.slo import Slo, SloError


@pytest.mark.parametrize("text", ["ttft<=1.2345678s", "e2e<=86400.000001s", "tbt_p99<=1us"])
def test_an_slo_as_text_reads_back_to_the_nanosecond(text: str) -> None:
    slo = Slo.parse(text)
    assert Slo.parse(str(slo)) == slo


def test_an_slo_is_written_as_people_write_it() -> None:
    assert str(Slo.parse("ttft<=2s,tbt_p99<=0.25ms")) == "tbt_p99<=0.25ms,ttft<=2000ms"


@pytest.mark.parametrize(
    "text",
    ["ttft<=99999999999999999999s", "tbt_p99<=9223372036s", "e2e<=0s", "ttft<=0.0000001us"],
)
def test_bounds_that_no_sum_of_deadlines_could_hold_are_refused(text: str) -> None:
    with pytest.raises(SloError, match="above 0 and at most"):
        Slo.parse(f"tpot<=1s,{text}")


def test_a_term_is_bounded_once() -> None:
    with pytest.raises(SloError, match="twice"):
        Slo.parse("ttft<=1s,ttft<=2s")


@pytest.mark.parametrize("number", ["1.1.1", ".", "9" * 400])
def test_what_is_no_number_is_refused(number: str) -> None:
    with pytest.raises(SloError, match="as a number"):
        Slo.parse(f"ttft<={number}s")
