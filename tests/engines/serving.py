"""A real `vllm serve` of a tiny random model on the CPU, and clients for it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.tiny_model import CONFIG
from tests.engines.versions import PYTHON

READY_S = 480
BUDGET = 256
FLAGS = [
    *("--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32"),
    *("--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", str(BUDGET)),
    *("--num-gpu-blocks-override", "40", "--block-size", "32", "--served-model-name", "tiny"),
    *("--disable-uvicorn-access-log", "--host", "127.0.0.1"),
]
"""39 blocks of 32 tokens for 8 requests of up to 364: preemptions are certain."""


@dataclass(frozen=True)
class Server:
    """A server that answers; `process` is its API server, the ring's HELLO names the core."""

    url: str
    rings: Path
    process: subprocess.Popen[bytes]
    log: Path

    def await_ready(self) -> None:
        """Until it answers; AssertionError with the end of its log when it ends or never does."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
            except OSError:
                time.sleep(0.5)
            else:
                return
        raise AssertionError(self.log.read_text()[-3000:])

    def tokens(self, name: str, prompt: list[int], tokens: int) -> list[int]:
        """The greedy tokens of one request."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        asked = {**body, "temperature": 0, "return_token_ids": True}
        (choice,) = json.loads(self._post(asked, name))["choices"]
        found: list[int] = choice["token_ids"]
        return found

    def completion(self, name: str, prompt: list[int], tokens: int) -> dict[str, Any]:
        """One request by an id of the client's own; the whole reply."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        reply: dict[str, Any] = json.loads(self._post({**body, "temperature": 0}, name))
        return reply

    def hang_up(self, name: str, prompt: list[int], *, core: int) -> None:
        """Ask for a long stream, and go away after its first piece. The core is halted until the
        API server has noticed, else a busy machine may finish the stream before.
        """
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 450, "ignore_eos": True}
        request = self._request({**body, "stream": True}, name)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                reply.readline()
                os.kill(core, signal.SIGSTOP)
            for _ in range(5):  # answered by the same event loop, after the hang-up
                urllib.request.urlopen(f"{self.url}/health", timeout=30).close()
        finally:
            os.kill(core, signal.SIGCONT)

    def counters(self) -> Counter[str]:
        """All samples of /metrics with a `_total` or bucket: name and labels but model -> value."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        found = Counter[str]()
        for line in lines:
            match = re.match(r"(vllm:\w+)\{(.*)\} (\S+)$", line)
            if match:
                kept = [p for p in match[2].split(",") if not p.startswith(("engine=", "model_"))]
                found[f"{match[1]}{{{','.join(kept)}}}"] += float(match[3])  # type: ignore[assignment]
        return found

    def _post(self, body: dict[str, Any], name: str) -> bytes:
        with urllib.request.urlopen(self._request(body, name), timeout=120) as reply:
            answer: bytes = reply.read()
            return answer

    def _request(self, body: dict[str, Any], name: str) -> urllib.request.Request:
        headers = {"content-type": "application/json", "X-Request-Id": name}
        return urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), headers
        )


def burst(server: Server, jobs: list[tuple[str, list[int], int]]) -> dict[str, dict[str, Any]]:
    """All jobs at once; name -> reply."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        replies = threads.map(lambda job: server.completion(*job), jobs)
        return dict(zip((name for name, _, _ in jobs), replies, strict=True))


@contextmanager
def serving(
    folder: Path,
    rings: Path,
    *,
    vllm: Sequence[str] = (str(PYTHON.with_name("vllm")),),
    flags: Sequence[str] = (),
    wait: bool = True,
    **settings: str,
) -> Iterator[Server]:
    """Start it with the adapter dormant, wait until it answers, end it and all that it started.

    `vllm` is the command in front of `serve`; `settings` are variables of its environment.
    """
    (folder / "config.json").write_text(json.dumps(CONFIG))
    port, log = free_port(), folder / "log"
    command = [*one_core(), *vllm, "serve", str(folder), *FLAGS, *flags, "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=_env(rings) | settings, stdout=file, stderr=file, start_new_session=True
        )
        server = Server(f"http://127.0.0.1:{port}", rings, process, log)
        try:
            if wait:
                server.await_ready()
            yield server
        finally:
            _end(process)


def one_core() -> list[str]:
    """What keeps an engine and all that it starts on one core, where there are more. Its processes
    call sched_yield() without end while they wait for each other; one on every core, and Linux
    (seen: 6.18) lets everybody else run for 2 % of the time.
    """
    *others, last = sorted(os.sched_getaffinity(0))
    return ["taskset", "--cpu-list", str(last)] if others else []


def _env(rings: Path) -> dict[str, str]:
    return {
        **os.environ,
        "BATCHSCOPE_DIR": str(rings),
        "BATCHSCOPE_OVERHEAD": "0",
        "BATCHSCOPE_REQUEST_IDS": "plain",
        "BATCHSCOPE_RING_BYTES": str(16 << 20),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its whole process group, which is ours alone: asked first, then without asking."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    deadline = time.monotonic() + 15
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:  # the last one of them tidies up their shared memory
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
