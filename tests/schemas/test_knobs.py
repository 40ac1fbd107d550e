"""Which flag is named for which engine, version and reason."""

from batchscope.schemas.knobs import KNOBS, knobs_for, numbers
from batchscope.schemas.reasons import DeferralReason


def test_a_knob_is_named_only_for_versions_that_have_it() -> None:
    watermark = DeferralReason.KV_WATERMARK
    assert "--watermark" in [k.flag for k in knobs_for("vllm", "0.32.0+cpu", watermark)]
    assert "--watermark" not in [k.flag for k in knobs_for("vllm", "0.23.0", watermark)]
    assert knobs_for("vllm", "unknown", watermark) == ()
    assert knobs_for("sglang", "0.32.0", watermark) == ()


def test_the_most_direct_knob_comes_first() -> None:
    first = {r: knobs_for("vllm", "0.33.0", r)[:1] for r in DeferralReason}
    assert first[DeferralReason.TOKEN_BUDGET][0].flag == "--max-num-batched-tokens"
    assert first[DeferralReason.MAX_REQUESTS][0].flag == "--max-num-seqs"
    assert first[DeferralReason.KV_BLOCKS][0].flag == "--gpu-memory-utilization"
    assert first[DeferralReason.UNKNOWN] == ()


def test_versions_compare_by_number() -> None:
    assert numbers("0.8.5") < numbers("0.10.2") < numbers("0.33.0+cpu")
    assert numbers("dev") == ()


def test_every_knob_says_what_it_costs_and_where_its_value_is() -> None:
    for knob in KNOBS:
        part, _, name = knob.setting.partition(".")
        assert part.endswith("_config"), knob
        assert name.isidentifier(), knob
        assert knob.side_effect, knob
        assert knob.reasons, knob
