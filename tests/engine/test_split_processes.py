"""The two halves as processes of their own, and what a kill -9 of either leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.engine.halves import Client, until
from tests.engine.test_command import COMMAND, free_port, is_listening

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner
from batchscope.engine.engine import Engine
from batchscope.engine.link import Arena
from batchscope.engine.loop import Stopped
from batchscope.engine.pair import dialling
from batchscope.engine.prefill import PrefillLoop
from batchscope.engine.sequence import FinishReason

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 6


@contextmanager
def process(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """An engine started with these flags, killed at the end."""
    started = subprocess.Popen([*COMMAND, *flags], stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def prefilling(link: Path) -> Iterator[PrefillLoop]:
    """A prefill half here, for the decode half that listens there."""
    engine = Engine(EngineConfig(runner="cost", role="prefill"), runner=CostRunner())
    loop = PrefillLoop(engine, dialling(str(link)))
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def children(pid: int) -> list[int]:
    """Processes that this one has started."""
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in told.split()]


def is_gone(pid: int) -> bool:
    """Whether the process has ended, waited for or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_a_killed_decode_engine_costs_its_requests_and_the_next_one_goes_on(tmp_path: Path) -> None:
    link = tmp_path / "link"
    with prefilling(link) as loop:
        scheduler = loop.engine.scheduler
        with process("--role", "decode", "--link", str(link)) as decode:
            until(lambda: loop.linked)
            served = Client(loop, "served", PROMPT, 4)
            assert len(served.wait()) == 4
            lost = [Client(loop, f"r{i}", [i] * 40, 5000) for i in range(3)]
            until(lambda: all(len(client.tokens) > 3 for client in lost))
            decode.send_signal(signal.SIGKILL)
            for client in lost:
                client.wait()
            until(lambda: not loop.linked)
        assert {client.reason for client in lost} == {FinishReason.ERROR}
        assert (len(scheduler.kept), scheduler.kept_blocks, scheduler.blocks.used) == (0, 0, 0)
        with pytest.raises(Stopped):
            Client(loop, "refused", PROMPT, 4)
        with process("--role", "decode", "--link", str(link)):
            until(lambda: loop.linked)
            assert Client(loop, "again", PROMPT, 4).wait() == served.tokens


def test_a_split_server_answers_as_one_and_says_so_when_half_of_it_is_gone() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    body = {"prompt": PROMPT, "max_tokens": 5, "return_token_ids": True, "ignore_eos": True}
    with process("--split", "--port", str(port)) as server:
        until(lambda: is_listening(port) and httpx.get(f"{url}/health").status_code == 200)
        answer = httpx.post(f"{url}/v1/completions", json=body).json()
        assert len(answer["choices"][0]["token_ids"]) == 5
        (decode,) = children(server.pid)
        os.kill(decode, signal.SIGKILL)
        until(lambda: httpx.get(f"{url}/health").status_code == 503)
        assert httpx.post(f"{url}/v1/completions", json=body).status_code == 503
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=20)
        assert (server.returncode, said) == (0, "engine: not linked: the other half has gone\n")


def test_a_killed_server_takes_its_decode_engine_with_it() -> None:
    port = free_port()
    with process("--split", "--port", str(port)) as server:
        until(lambda: is_listening(port) and bool(children(server.pid)))
        (decode,) = children(server.pid)
        server.send_signal(signal.SIGKILL)
        until(lambda: is_gone(decode))


def test_roles_that_make_no_split_end_it_with_one_sentence() -> None:
    for flags in (["--role", "decode"], ["--link", "somewhere"], ["--split", "--link", "x"]):
        done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "go together" in done.stderr


def test_shared_pages_have_no_name_that_could_stay_behind() -> None:
    arena = Arena.create(pages=3, page_bytes=8)
    arena.put([2, 0], b"abcdefghABCDEFGH")
    assert arena.get([0, 2, 1]) == b"ABCDEFGHabcdefgh" + bytes(8)
    assert os.readlink(f"/proc/self/fd/{arena.descriptor}").startswith("/memfd:")
    arena.close()
