"""Traffic in a person's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchscope.workload.trace import TraceError
from batchscope.workload.traffic import Wish, traffic

S = 10**9
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.0000000,{100 + second},{second + 1}\n" for second in range(10)
)
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,5,105,20\n7,3,10,2\n"
CLIENTS = "client,window_start_s,rate,cv,pattern,arg1,arg2\na,0,0.1,1,Gamma,1,1\n"


def file(folder: Path, text: str) -> str:
    (folder / "t.csv").write_text(text)
    return str(folder / "t.csv")


@pytest.mark.parametrize("source", ["chat", "code", "poisson", "constant", "gamma:3", "onoff:2:5"])
def test_what_is_drawn_has_the_rate_and_the_duration_that_are_asked_for(source: str) -> None:
    made = traffic(Wish(source, rate_per_s=4.0, duration_s=30, seed=3))
    assert len(made) == 120
    assert made.duration_ns == pytest.approx(119 / 4 * S, abs=2)
    again = traffic(Wish(source, rate_per_s=4.0, duration_s=30, seed=3))
    other = traffic(Wish(source, rate_per_s=4.0, duration_s=30, seed=4))
    assert np.array_equal(made.at_ns, again.at_ns)
    assert source == "constant" or not np.array_equal(made.at_ns, other.at_ns)


def test_lengths_are_fixed_or_drawn_between_two() -> None:
    made = traffic(
        Wish("poisson", rate_per_s=9, requests=500, prompt_tokens="64", output_tokens="8:11")
    )
    assert set(made.prompt_tokens.tolist()) == {64}
    assert set(made.output_tokens.tolist()) == {8, 9, 10, 11}


def test_a_recorded_trace_keeps_its_pace_unless_another_is_asked_for(tmp_path: Path) -> None:
    path = file(tmp_path, AZURE)
    assert traffic(Wish(path)).at_ns.tolist() == [n * S for n in range(10)]
    assert traffic(Wish(path, time_scale=0.5)).duration_ns == 4.5 * S
    faster = traffic(Wish(path, rate_per_s=5, duration_s=1))
    assert faster.at_ns.tolist() == [n * S // 5 for n in range(5)]
    assert faster.prompt_tokens.tolist() == [100, 101, 102, 103, 104]
    assert len(traffic(Wish(path, duration_s=3))) == 3


def test_mere_lengths_get_their_instants_from_a_law(tmp_path: Path) -> None:
    made = traffic(Wish(file(tmp_path, LENGTHS), rate_per_s=2, requests=50, arrivals="constant"))
    assert set(np.diff(made.at_ns).tolist()) == {S // 2}
    pairs = zip(made.prompt_tokens.tolist(), made.output_tokens.tolist(), strict=True)
    assert set(pairs) == {(100, 5), (7, 3)}


def test_clients_of_which_only_statistics_are_known_get_lengths(tmp_path: Path) -> None:
    made = traffic(Wish(file(tmp_path, CLIENTS), prompt_tokens="32", output_tokens="4"))
    assert len(made) == 60
    assert set(made.prompt_tokens.tolist()) == {32}


def test_lengths_are_scaled_then_cut(tmp_path: Path) -> None:
    path = file(tmp_path, AZURE)
    made = traffic(Wish(path, length_scale=0.5, max_prompt_tokens=52, max_output_tokens=3))
    assert made.prompt_tokens.tolist() == [50, 51, 51, *[52] * 7]
    assert made.output_tokens.max() == 3


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"source": "nowhere"}, "no file 'nowhere', nor a law of that name \\(.*gamma:CV"),
        ({"source": "/"}, "'/' is a folder"),
        ({"source": "chat"}, "chat has no rate of its own"),
        ({"source": "poisson"}, "poisson has no rate of its own"),
        ({"source": "gamma", "rate_per_s": 1}, "'gamma' is no law"),
        ({"source": "gamma:x", "rate_per_s": 1}, "'gamma:x' is no law"),
        ({"source": "onoff:1:-1", "rate_per_s": 1}, "is no law"),
        ({"source": "poisson", "rate_per_s": 1, "prompt_tokens": "9:3"}, "'9:3' is no length"),
        ({"source": "poisson", "rate_per_s": 1, "output_tokens": "1:2:3"}, "is no length"),
        ({"source": "poisson", "rate_per_s": 0}, "a rate must be above 0"),
        ({"source": "chat", "rate_per_s": 1, "time_scale": 2}, "contradict"),
        ({"source": "chat", "rate_per_s": 1, "requests": -1}, "number of requests"),
        ({"source": "chat", "rate_per_s": 1e12}, "6e\\+13 requests are too many"),
        (
            {"source": "poisson", "rate_per_s": 1e300, "duration_s": 1e300},
            "inf requests are too many",
        ),
        ({"source": "gamma:2", "rate_per_s": 1, "requests": 10**9}, "at most 10,000,000"),
    ],
)
def test_what_cant_be_made_is_said_in_a_sentence(wish: dict[str, Any], why: str) -> None:
    with pytest.raises(TraceError, match=why):
        traffic(Wish(**wish))
