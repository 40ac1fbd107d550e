"""SLOs as text: what is stored says exactly what was judged by."""

import pytest

from batchscope.schemas.slo import Slo


@pytest.mark.parametrize("text", ["ttft<=1.2345678s", "e2e<=86400.000001s", "tbt_p99<=1us"])
def test_an_slo_as_text_reads_back_to_the_nanosecond(text: str) -> None:
    slo = Slo.parse(text)
    assert Slo.parse(str(slo)) == slo


def test_an_slo_is_written_as_people_write_it() -> None:
    assert str(Slo.parse("ttft<=2s,tbt_p99<=0.25ms")) == "tbt_p99<=0.25ms,ttft<=2000ms"
