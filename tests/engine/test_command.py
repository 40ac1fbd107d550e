"""`python -m batchscope.engine` as a person starts it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import fields

import httpx

from batchscope.engine.__main__ import HELP
from batchscope.engine.config import EngineConfig

COMMAND = [sys.executable, "-m", "batchscope.engine", "--runner", "cost"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until_listening(port: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_listening(port):
        assert time.monotonic() < deadline, "it never listened"
        time.sleep(0.05)


def test_it_serves_until_it_is_interrupted_and_ends_with_0() -> None:
    port = free_port()
    flags = ["--port", str(port), "--policy", "paged", "--admit-delay", "2"]
    process = subprocess.Popen(
        [*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until_listening(port)
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models")
        assert answer.json()["data"][0]["id"] == "mini-cost"
        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=20)
        assert (process.returncode, complaints) == (0, "")
        assert said == f"engine: mini-cost at http://127.0.0.1:{port}/v1\n"
    finally:
        process.kill()
        process.wait()


def test_the_help_says_what_each_setting_is_and_its_default() -> None:
    assert set(HELP) == {setting.name for setting in fields(EngineConfig)} - {"model"}
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    said = " ".join(done.stdout.split())
    assert "--port PORT to listen on; 0: a free one (default: 8000)" in said
    assert "blocks of the KV pool (default: 6250)" in said
    assert said.count("keep the KV of shared beginnings (default: True)") == 1
    assert all(f"{HELP[name]} (default: " in said for name in HELP)


def test_settings_that_cannot_be_served_end_it_with_one_sentence() -> None:
    for flags, why in (
        (["--policy", "static", "--max-model-len", "999999"], "the KV pool has room for 100000"),
        (["--weights", "/nowhere"], "/nowhere/config.json"),
        (["--admit-min-free", "65"], "admit_min_free must be at least 0 and below 65"),
    ):
        done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert why in done.stderr
        assert done.stderr.count("\n") == 1
