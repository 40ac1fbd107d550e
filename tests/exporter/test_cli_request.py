"""`batchscope request`: a request's rows as a story, and the way to them over HTTP."""

from typing import Any

import pytest
from tests.support.commands import as_json, base
from tests.support.served import Served

from batchscope.exporter.cli import story

MS = 1_000_000
AT, UNIX = 5_000 * MS, 1_700_000_000_000 * MS


def row(**known: Any) -> Any:
    """A request that arrived at ms 0, unknown in all that isn't given; `*_at` in ms."""
    names = ("max_tokens", "first_scheduled_at_ns", "first_token_at_ns", "last_token_at_ns")
    more = ("finished_at_ns", "cached_tokens", "in_step_ns", "queue_ns", "ttft_ns", "e2e_ns")
    rest = ("tpot_ns", "tbt_p50_ns", "tbt_p99_ns", "tbt_max_ns", "slo", "verdict", "finish_reason")
    one: dict[str, Any] = dict.fromkeys((*names, *more, *rest))
    one |= {"serial": 7, "engine": "vllm", "tenant": "red", "prompt_tokens": 600}
    one |= {"arrived_at_ns": AT, "arrived_unix_ns": UNIX, "unix_ns": UNIX, "broken": False}
    one |= {"output_tokens": 0, "recomputed_tokens": 0, "cached_on_resume_tokens": 0}
    one |= {"waits": [], "runs": [], "gaps": [], "preemptions": []}
    return one | known


def at(ms: Any) -> Any:
    return AT + round(ms * MS)


def unix(ms: Any) -> Any:
    return UNIX + round(ms * MS)


def wait(reason: Any, ms: Any, decisions: Any, *, admission: Any = 0, end: Any = 0) -> Any:
    known = {"admission": admission, "reason": reason, "skipped": False, "unix_ns": unix(end)}
    return known | {"decisions": decisions, "wait_ns": ms * MS}


def run(
    phase: Any, first: Any, tokens: Any, *, steps: Any = 1, end: Any, again: Any = False
) -> Any:
    known = {"phase": phase, "recompute": again, "first_iteration": first, "n_iterations": steps}
    return known | {"stride": 1, "tokens_each": tokens, "unix_ns": unix(end)}


LIFE = row(
    max_tokens=100,
    first_scheduled_at_ns=at(40.5),
    first_token_at_ns=at(70),
    last_token_at_ns=at(300),
    finished_at_ns=at(301),
    unix_ns=unix(301),
    finish_reason="length",
    output_tokens=100,
    cached_tokens=64,
    in_step_ns=500_000,
    queue_ns=40_500_000,
    ttft_ns=70 * MS,
    e2e_ns=300 * MS,
    tpot_ns=2_323_232,
    tbt_p50_ns=2 * MS,
    tbt_p99_ns=9 * MS,
    tbt_max_ns=120 * MS,
    recomputed_tokens=300,
    cached_on_resume_tokens=320,
    slo="default",
    verdict="missed",
    waits=[
        wait("token_budget", 30, 3, end=40.5),
        wait("kv_blocks", 10, 1, end=40.5),
        wait("kv_blocks", 90, 9, admission=1, end=200),
    ],
    runs=[
        run("prefill", 101, 256, steps=2, end=65),
        run("prefill", 103, 24, end=70),
        run("decode", 104, 1, steps=20, end=110),
        run("prefill", 130, 300, end=230, again=True),
        run("decode", 131, 1, steps=78, end=300),
    ],
    gaps=[
        {"gap_ns": 120 * MS, "from_iteration": 123, "iteration_id": 130, "preempted": True,
         "unix_ns": unix(230)},
    ],
    preemptions=[{"reason": "kv_blocks", "lost_tokens": 620, "at_ns": at(110)}],
)  # fmt: skip

TOLD = """\
chat-7: serial 7 of vllm (red)
        +0.0  arrived, prompt of 600 tokens, at most 100 to come
       +40.5  admitted after 40.5 ms: 500 us to the next decision, token_budget 30 ms (3 decisions), kv_blocks 10 ms (1 decision)
       +40.5  found 64 prompt tokens in the prefix cache
       +70.0  computed 256 + 256 + 24 tokens in iterations 101 to 103
       +70.0  first token (TTFT 70 ms)
      +110.0  preempted for kv_blocks, 620 computed tokens lost
      +200.0  admitted again, waited kv_blocks 90 ms (9 decisions)
      +230.0  recomputed 300 tokens in iteration 130
      +230.0  a gap of 120 ms over iterations 123 to 130, a preemption within
      +301.0  ended by length: 100 tokens, E2E 300 ms; TBT p50 2 ms, p99 9 ms, longest 120 ms, TPOT 2.32 ms
      +301.0  recomputed 300 tokens in all, 320 tokens found in the cache again
     verdict  missed the SLO (default)"""  # noqa: E501


def test_a_life_is_told_in_the_order_of_time() -> None:
    assert "\n".join(story.lines(LIFE, asked="chat-7")) == TOLD


def test_a_request_that_still_waits_has_arrived_and_no_more() -> None:
    one = row(waits=[wait("max_requests", 12, 4, end=12)])
    assert story.lines(one, asked="x")[1:] == [
        "        +0.0  arrived, prompt of 600 tokens",
        "       +12.0  waited max_requests 12 ms (4 decisions)",
        "           -  still here, 0 tokens so far",
    ]


def test_of_one_that_was_here_before_us_the_wait_is_unknown_and_not_zero() -> None:
    one = row(
        arrived_at_ns=None,
        arrived_unix_ns=None,
        first_token_at_ns=at(0),
        finished_at_ns=at(30),
        unix_ns=unix(30),
        finish_reason="stop",
        output_tokens=1,
        prompt_tokens=None,
        broken=True,
        gaps=[{"gap_ns": MS, "from_iteration": 1, "iteration_id": 2, "preempted": False,
               "unix_ns": unix(20)}],
    )  # fmt: skip
    told = story.lines(one, asked="x")
    assert "        +0.0  first token (TTFT -)" in told
    assert "       +20.0  a gap of 1 ms over iterations 1 to 2" in told
    assert "           -  was here before recording began; prompt of unknown length" in told
    assert told[-1].endswith("records about it were lost: what needs them is unknown")


def test_many_chunks_are_summed_after_the_first_seven() -> None:
    one = row(runs=[run("prefill", 5, 32, steps=20, end=9)])
    told = "\n".join(story.lines(one, asked="x"))
    sizes = " + ".join(["32"] * 7)
    assert f"computed {sizes} + 416 tokens (the last of 13 chunks) in iterations 5 to 24" in told


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Any:
    with Served(tmp_path_factory.mktemp("request"), token="s3cret") as running:
        yield running


def url(served: Any) -> Any:
    return str(served.http.base_url).rstrip("/")


TOKEN = {"BATCHSCOPE_TOKEN": "s3cret"}


def test_what_the_front_end_handed_on_is_part_of_the_story() -> None:
    handed = {
        "first_unix_ns": unix(72.5),
        "last_unix_ns": unix(304),
        "delivered_tokens": 100,
        "deliveries": 98,
        "ttft_ns": 75 * MS,
        "e2e_ns": 306 * MS,
        "gap_max_ns": 121 * MS,
        "lag_first_ns": 2_500_000,
        "lag_mean_ns": 1_200_000,
        "lag_max_ns": None,
    }
    told = story.lines(LIFE | {"deliveries": [handed]}, asked="x")
    assert [line for line in told if "handed" in line] == [
        (
            "       +72.5  first token handed to its stream by the front end"
            " (TTFT there 75 ms, 2.5 ms after the core had it)"
        ),
        (
            "      +304.0  100 tokens handed over in 98 pieces: E2E there 306 ms,"
            " longest gap 121 ms, lag 1.2 ms, longest -"
        ),
    ]
    never = handed | {"first_unix_ns": None, "last_unix_ns": None, "deliveries": 0}
    assert "first token handed" not in "".join(
        story.lines(LIFE | {"deliveries": [never]}, asked="x")
    )


def test_the_clients_id_is_enough(served: Any) -> None:
    done = base("request", "req-42", "--exporter", url(served), env=TOKEN)
    assert done.stdout.startswith("req-42: serial 1 of an engine\n")
    (one,) = as_json("request", "req-42", "--exporter", url(served), env=TOKEN)["requests"]
    assert (one["serial"], one["runs"], one["waits"]) == (1, [], [])


def test_an_exporter_without_the_salt_is_asked_by_the_key(served: Any) -> None:
    """As one that only reads a store: the folder's salt is taken from here."""
    pipeline, served.service.pipeline = served.service.pipeline, None
    try:
        words = ("request", "req-42", "--exporter", url(served))
        assert "serial 1 of" in base(*words, "--dir", served.rings, env=TOKEN).stdout
        missing = base(*words, "--dir", "/nowhere", env=TOKEN, code=1)
        assert "no request with id or key 'req-42'" in missing.stderr
        other = base("request", "x/../y", *words[2:], "--dir", served.rings, env=TOKEN, code=1)
        assert other.stderr.startswith("batchscope: ")
    finally:
        served.service.pipeline = pipeline


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        (["nobody"], TOKEN, 1, "no request with id or key 'nobody' is in the store"),
        (["req-42"], {}, 1, "set BATCHSCOPE_TOKEN"),
        (["req-42", "--exporter", "http://127.0.0.1:9"], {}, 1, "start batchscope serve"),
        (["req-42", "--exporter", "localhost"], {}, 2, "can't use 'localhost' for --exporter"),
        ([], {}, 2, "required: ID"),
    ],
)
def test_a_mistake_is_one_sentence(served: Any, words: Any, env: Any, code: Any, said: Any) -> None:
    done = base("request", *words, env={"BATCHSCOPE_URL": url(served), **env}, code=code)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
