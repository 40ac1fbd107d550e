"""The server over real sockets: what OpenAI's clients send and read, and clients that vanish."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import httpx
import pytest
import uvicorn

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.loop import EngineLoop
from batchscope.engine.runner import Runner
from batchscope.engine.sequence import FinishReason
from batchscope.engine.server import make_app
from batchscope.engine.text import Bytes, Tokenizer
from batchscope.engine.torch_runner import TorchRunner

PROMPT = [5, 6, 7, 8]


def quick() -> CostRunner:
    return CostRunner(sleep=lambda seconds: None)


def unhurried() -> CostRunner:
    """Slow enough that a client can leave before its answer is there."""
    return CostRunner(sleep=lambda seconds: time.sleep(0.001))


@contextmanager
def serving(
    *,
    runner: Runner | None = None,
    max_waiting: int = 256,
    tokenizer: Tokenizer | None = None,
    **config: Any,
) -> Iterator[tuple[httpx.Client, EngineLoop]]:
    engine = Engine(EngineConfig(runner="cost", **config), runner=runner or quick())
    loop = EngineLoop(engine, max_waiting=max_waiting)
    app = make_app(loop, model="mini", tokenizer=tokenizer or Bytes())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client, loop
    finally:
        server.should_exit = True
        thread.join(20)
    assert engine.scheduler.blocks.used == 0, "pages are left"


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def served() -> Iterator[httpx.Client]:
    with serving() as (client, _):
        yield client


def body(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPT,
        "max_tokens": 6,
        "ignore_eos": True,
        "return_token_ids": True,
    } | changes


def expected(prompt: list[int], max_tokens: int) -> list[int]:
    engine = Engine(EngineConfig(runner="cost"), runner=quick())
    seq = engine.submit("a", prompt, max_tokens)
    while engine.has_work():
        engine.step()
    return seq.output


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion_gives_the_engines_own_tokens_and_counts_them(served: httpx.Client) -> None:
    answer = served.post("/v1/completions", json=body()).json()
    (choice,) = answer["choices"]
    assert choice["token_ids"] == expected(PROMPT, 6)
    assert choice["text"] == Bytes().decode(choice["token_ids"])
    assert choice["finish_reason"] == "length"
    assert (answer["object"], answer["model"]) == ("text_completion", "mini")
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}


def test_a_stream_joins_to_the_same_answer(served: httpx.Client) -> None:
    whole = served.post("/v1/completions", json=body(max_tokens=40)).json()["choices"][0]
    streamed = served.post("/v1/completions", json=body(max_tokens=40, stream=True))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    choices = [chunk["choices"][0] for chunk in events(streamed)]
    assert [id_ for choice in choices for id_ in choice["token_ids"]] == whole["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * 40 + ["length"]


def test_a_stream_ends_with_usage_when_asked(served: httpx.Client) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(served.post("/v1/completions", json=body(**options)))
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("prompt", ["hé", ["hé"], [105, 196, 170], [[105, 196, 170]]])
def test_a_prompt_is_text_or_token_ids_alone_or_in_a_list(
    served: httpx.Client, prompt: Any
) -> None:
    answer = served.post("/v1/completions", json=body(prompt=prompt)).json()
    assert answer["choices"][0]["token_ids"] == expected([105, 196, 170], 6)


def test_a_chat_streams_deltas_that_join_to_its_message(served: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 9}
    answer = served.post("/v1/chat/completions", json=chat).json()
    message = answer["choices"][0]["message"]
    assert (answer["object"], message["role"]) == ("chat.completion", "assistant")
    chunks = events(served.post("/v1/chat/completions", json=chat | {"stream": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert answer["usage"]["prompt_tokens"] == len("user: hi\nassistant:")


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 9000}, 400, "max_model_len"),
        ({"prompt": []}, 400, "empty"),
        ({"prompt": ["a", "b"]}, 400, "one prompt"),
        ({"prompt": {"a": 1}}, 400, "prompt"),
        ({"max_tokens": -1}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ({"n": 2}, 400, "n is not supported"),
        ({"stop": ["x"]}, 400, "stop is not supported"),
        ({"logprobs": 3}, 400, "logprobs is not supported"),
        ({"echo": True}, 400, "echo is not supported"),
        ({"tools": [{"type": "function"}]}, 400, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format is not supported"),
        ({"model": "gpt"}, 404, "the model here is mini"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    served: httpx.Client, changes: dict[str, Any], status: int, why: str
) -> None:
    answer = served.post("/v1/completions", json=body(**changes))
    assert answer.status_code == status
    assert why in answer.json()["error"]["message"]


def test_a_turn_may_come_as_parts_of_text_and_nothing_else(served: httpx.Client) -> None:
    def chat(content: Any) -> httpx.Response:
        told = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
        return served.post("/v1/chat/completions", json=told)

    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    whole, joined = chat("hi").json(), chat(parts).json()
    assert joined["choices"] == whole["choices"]
    assert joined["usage"] == whole["usage"]
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert chat([image]).status_code == 400
    assert "messages.0.content" in chat([image]).json()["error"]["message"]


def test_health_and_models_say_who_is_there(served: httpx.Client) -> None:
    assert served.get("/health").status_code == 200
    (card,) = served.get("/v1/models").json()["data"]
    assert card["id"] == "mini"
    assert served.get("/v1/models/mini").json() == card
    assert served.get("/v1/models/gpt").status_code == 404


def test_a_path_that_is_not_there_is_an_error_as_clients_read_it(served: httpx.Client) -> None:
    answer = served.post("/v1/embeddings", json={"input": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Not Found")
    wrong = served.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_request_id_comes_back(served: httpx.Client, stream: bool) -> None:
    headers = {"X-Request-Id": f"mine-{stream}"}
    answer = served.post("/v1/completions", json=body(stream=stream), headers=headers)
    assert answer.headers["x-request-id"] == f"mine-{stream}"
    assert f"cmpl-mine-{stream}" in answer.text
    unnamed = served.post("/v1/completions", json=body(), headers={"X-Request-Id": "a b"})
    assert len(unnamed.headers["x-request-id"]) == 32


def test_the_engine_knows_the_clients_id_trace_user_and_priority() -> None:
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    headers = {"X-Request-Id": "mine", "traceparent": parent}
    with serving() as (client, loop):
        seen: list[Any] = []
        add = loop.engine.scheduler.add

        def watched(seq: Any) -> None:
            seen.append(seq)
            add(seq)

        loop.engine.scheduler.add = watched  # type: ignore[method-assign]
        told = body(user="red", priority=3)
        client.post("/v1/completions", json=told, headers=headers)
    (seq,) = seen
    assert (seq.request_id, seq.tenant, seq.priority) == ("mine", "red", 3)
    assert seq.trace_context == (b"\xab" * 16, b"\xcd" * 8)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_frees_its_pages_at_once(stream: bool) -> None:
    with serving(runner=unhurried()) as (client, loop):
        scheduler = loop.engine.scheduler
        told = body(max_tokens=8000, stream=stream)
        with (
            nullcontext() if stream else pytest.raises(httpx.ReadTimeout),
            client.stream("POST", "/v1/completions", json=told, timeout=0.5) as answer,
        ):
            next(answer.iter_lines())
            assert scheduler.blocks.used > 0
        until(lambda: scheduler.totals.aborted == 1)
        assert not scheduler.live
        assert scheduler.blocks.used == 0


def test_overload_is_429_and_a_later_try_is_served() -> None:
    with serving(runner=unhurried(), max_waiting=1, max_num_seqs=1) as (client, loop):
        with ThreadPoolExecutor(2) as pool:
            long = body(max_tokens=300)
            going = [pool.submit(client.post, "/v1/completions", json=long)]
            until(lambda: len(loop.engine.scheduler.running) == 1)
            going.append(pool.submit(client.post, "/v1/completions", json=long))
            until(lambda: loop.waiting == 1)
            refused = client.post("/v1/completions", json=body())
            assert [each.result().status_code for each in going] == [200, 200]
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.post("/v1/completions", json=body()).status_code == 200
        assert loop.engine.totals.arrived == 3


def test_an_engine_that_has_ended_is_503() -> None:
    with serving() as (client, loop):
        loop.stop()
        assert client.post("/v1/completions", json=body()).status_code == 503
        assert client.get("/health").status_code == 503


def test_a_failed_iteration_is_an_error_of_its_members_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Fragile:
        def __init__(self) -> None:
            self.own = quick()

        def run(self, batch: Any) -> dict[str, int]:
            if any(member.seq.prompt == [66] for member in batch.members):
                raise RuntimeError("out of memory")
            return self.own.run(batch)

    with serving(runner=Fragile()) as (client, loop):
        failed = client.post("/v1/completions", json=body(prompt=[66]))
        assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
        streamed = client.post("/v1/completions", json=body(prompt=[66], stream=True))
        assert events(streamed)[-1]["error"]["type"] == "server_error"
        assert client.post("/v1/completions", json=body()).status_code == 200
        assert loop.engine.totals.failed == 2
    assert "out of memory" in capfd.readouterr().err


@pytest.mark.usefixtures("one_thread")
def test_two_hundred_streams_of_a_real_model_with_a_third_of_the_clients_vanishing() -> None:
    """No page leaks, nobody is stuck, every arrival has one end, every token is counted once."""
    settings: dict[str, Any] = {"max_num_seqs": 32, "num_blocks": 100, "max_model_len": 1024}
    settings["max_num_batched_tokens"] = 8192  # no prompt is cut, so that none is begun twice
    model = TorchRunner(EngineConfig(device="cpu", **settings))
    with serving(runner=model, **settings) as (client, loop):
        scheduler, seqs = loop.engine.scheduler, []
        add = scheduler.add

        def noted(seq: Any) -> None:
            seqs.append(seq)
            add(seq)

        scheduler.add = noted  # type: ignore[method-assign]

        def talk(number: int) -> int:
            leaves, heard = number % 3 == 0, 0
            told = body(prompt=[number + 1] * 40, max_tokens=900 if leaves else 30, stream=True)
            with client.stream("POST", "/v1/completions", json=told) as answer:
                for line in answer.iter_lines():
                    heard += "token_ids" in line and '"token_ids":[]' not in line
                    if leaves and heard == 5:
                        return -1
            return heard

        limits = httpx.Limits(max_connections=200)
        with (
            httpx.Client(base_url=client.base_url, limits=limits, timeout=60) as client,
            ThreadPoolExecutor(200) as pool,
        ):
            heard = list(pool.map(talk, range(200)))
        assert [n for n in heard if n >= 0] == [30] * 133
        until(lambda: not scheduler.live)
        totals, blocks = loop.engine.totals, scheduler.blocks
        assert (totals.arrived, totals.finished, totals.aborted, totals.failed) == (200, 133, 67, 0)
        assert totals.output == sum(len(seq.output) for seq in seqs)
        assert sum(seq.finish_reason is FinishReason.LENGTH for seq in seqs) == 133
        # whoever left had heard tokens: every prompt was computed or found, once
        assert totals.prefill - totals.recomputed + totals.cached == 200 * 40
        assert totals.preemptions > 0
        assert (blocks.used, blocks.free + blocks.evictable) == (0, blocks.total)
