"""A real `vllm serve` under load: a newcomer's first minute, and a hundred attachments."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import shlex
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, records
from tests.dashboard.processes import answers
from tests.engines.live_page import live_page
from tests.engines.serving import Server, free_port, serving
from tests.engines.versions import PYTHON, ROOT

from batchscope.exporter.cli import main
from batchscope.exporter.store import Store
from batchscope.schemas.ring import Resident, RingReader, roster

pytestmark = pytest.mark.engines

ATTACH = "batchscope attach --all"
SERVE = ".venv/bin/batchscope serve"
PAGES = ".venv/bin/batchscope dashboard"
MINUTE_S = 60.0
CLIENTS, JOBS, TIMES, BY_COMMAND = 6, 48, 100, 3
Job = tuple[str, list[int], int]


def jobs() -> list[Job]:
    """Mixed lengths, shared prefixes; together they need more than the KV pool has."""
    rng = random.Random(11)
    return [job(number, rng) for number in range(JOBS)]


def job(number: int, rng: random.Random) -> Job:
    shared = [11] * 64 if number % 3 == 0 else []
    own = [(number * 31 + i * 7) % 900 + 10 for i in range(rng.randrange(10, 200))]
    return f"job-{number}", shared + own, rng.randrange(4, 150)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """One that is not even wrapped, and one with the adapter dormant."""
    folders = [tmp_path_factory.mktemp(name) for name in ("plain", "hooked")]
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as rings,
        serving(folders[0], Path(rings) / "none", wait=False, BATCHSCOPE="0") as plain,
        serving(folders[1], Path(rings) / "rings", wait=False) as hooked,
    ):
        plain.await_ready()
        hooked.await_ready()
        yield plain, hooked


@pytest.fixture(scope="module")
def hooked(servers: tuple[Server, Server]) -> Server:
    return servers[1]


@pytest.fixture(scope="module")
def expected(servers: tuple[Server, Server]) -> list[list[int]]:
    """What the server without us answers to each job."""
    plain, _ = servers
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(lambda each: plain.tokens(*each), jobs()))
    assert not plain.rings.exists()
    assert len({tuple(tokens) for tokens in found}) == JOBS, "prompts that tell nothing apart"
    return found


@contextmanager
def under_load(server: Server) -> Iterator[dict[str, list[int]]]:
    """Clients that ask for all jobs again and again until the end; unique name -> tokens."""
    got: dict[str, list[int]] = {}
    numbers, over = itertools.count(), threading.Event()

    def client() -> None:
        while not over.is_set():
            times, number = divmod(next(numbers), JOBS)
            _, prompt, tokens = jobs()[number]
            got[f"{number}.{times}"] = server.tokens(f"{number}.{times}", prompt, tokens)

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client) for _ in range(CLIENTS)]
        try:
            yield got
        finally:
            over.set()
        for each in clients:
            each.result()


@contextmanager
def command(line: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command of the README while it runs, from the clone's folder."""
    with subprocess.Popen(shlex.split(line), cwd=ROOT, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def environment(server: Server, store: Path) -> dict[str, str]:
    """A person's shell: vLLM's environment is active; places that are this test's own."""
    address = f"127.0.0.1:{free_port()}"
    return {
        **os.environ,
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "BATCHSCOPE_DIR": str(server.rings),
        "BATCHSCOPE_LISTEN": address,
        "BATCHSCOPE_URL": f"http://{address}",
        "BATCHSCOPE_STORE": str(store),
    }


def asked(env: dict[str, str], query: str) -> dict[str, list[Any]]:
    """A named query's columns; OSError when nobody answers."""
    with urllib.request.urlopen(f"{env['BATCHSCOPE_URL']}/api/v1/query/{query}", timeout=5) as told:
        columns: dict[str, list[Any]] = json.load(told)["columns"]
        return columns


def newest(env: dict[str, str]) -> int:
    """The newest iteration that the exporter tells of; 0 when none, or nobody answers."""
    try:
        return max((n for n in asked(env, "newest")["iteration_id"] if n), default=0)
    except OSError:
        return 0


def state(env: dict[str, str]) -> str:
    """Of the core's ring: closed once the exporter has read its goodbye."""
    told = asked(env, "engines")
    (found,) = (s for s, r in zip(told["state"], told["role"], strict=True) if r != "frontend")
    return str(found)


def until(holds: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    """What it returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_a_newcomer_sees_the_first_iteration_within_a_minute(
    hooked: Server, expected: list[list[int]], tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    assert all(f"\n{line} " in readme for line in (ATTACH, SERVE, PAGES))
    env = environment(hooked, tmp_path / "first.duckdb")
    pages = f"127.0.0.1:{free_port()}"
    seconds: dict[str, float] = {}
    with under_load(hooked):
        began = time.monotonic()

        def reached(what: str) -> None:
            seconds[what] = round(time.monotonic() - began, 1)

        done = subprocess.run(
            shlex.split(ATTACH), env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "attached, records members" in done.stdout
        reached("attach has answered")
        with command(SERVE, env), command(f"{PAGES} --listen {pages}", env):
            until(lambda: newest(env))
            reached("first iteration in the API")
            live_page(f"http://{pages}", seconds=120)
            reached("figures on the dashboard")
            doctor = ["batchscope", "doctor", "--json"]
            said = subprocess.run(doctor, env=env, capture_output=True, text=True, check=False)
            assert said.returncode == 0, said.stdout
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    print(json.dumps(seconds), f"with {crowd:.1f} processes to a core")
    assert max(seconds.values()) < MINUTE_S * crowd


def test_a_hundred_attachments_under_load_change_no_token_and_lose_no_record(
    hooked: Server, expected: list[list[int]], tmp_path: Path
) -> None:
    store = tmp_path / "hundred.duckdb"
    env = environment(hooked, store)
    turn(hooked, "detach", env)
    before = core(hooked)
    with command(SERVE, env):
        until(lambda: answers(f"{env['BATCHSCOPE_URL']}/readyz"))
        with under_load(hooked) as got:
            for number in range(TIMES):
                shell = env if number < BY_COMMAND else None
                assert turn(hooked, "attach", shell) == "attached"
                assert turn(hooked, "detach", shell) == "detached"
        seen = list(records(ring(hooked)))
        assert seen[-1].name == "bye"
        until(lambda: state(env) == "closed")
        resting_engine_records_nothing(hooked, expected)
    assert core(hooked) == before
    assert [name for name, tokens in got.items() if tokens != expected[index(name)]] == []
    assert len(got) > JOBS, "every job was asked for at least once"
    assert_whole(store, windows(seen), got)
    assert turn(hooked, "detach", None, "--for-good", "--wait", "0") == "asked", "it rests"
    assert hooked.tokens("after", *jobs()[0][1:]) == expected[0]
    assert [each for each in roster(hooked.rings) if each.alive] == []


def index(name: str) -> int:
    return int(name.partition(".")[0])


def turn(server: Server, word: str, env: dict[str, str] | None, *flags: str) -> str:
    """`batchscope attach --all` or detach: as a command where there is an `env`, else in here;
    what became of the engine core.
    """
    words = [word, "--all", "--json", "--dir", str(server.rings), *flags]
    if env is not None:
        done = subprocess.run(
            ["batchscope", *words], env=env, capture_output=True, timeout=60, check=True
        )
        told = json.loads(done.stdout)
    else:
        with redirect_stdout(io.StringIO()) as out:
            assert main(words) == 0
        told = json.loads(out.getvalue())
    (outcome,) = (each["outcome"] for each in told["engines"] if each["role"] != "frontend")
    return str(outcome)


def resident(server: Server) -> Resident:
    """The engine core."""
    alive = [each for each in roster(server.rings) if each.alive]
    (found,) = (each for each in alive if each.about["role"] != "frontend")
    return found


def ring(server: Server) -> RingReader:
    path = resident(server).ring
    assert path is not None
    return RingReader(path)


def core(server: Server) -> int:
    """Its pid; it is alive."""
    pid: int = resident(server).about["pid"]
    return pid


def resting_engine_records_nothing(server: Server, expected: list[list[int]]) -> None:
    reader = ring(server)
    list(records(reader))
    for number in range(4):
        assert server.tokens(f"rest-{number}", *jobs()[number][1:]) == expected[number]
    assert list(records(reader)) == []


def windows(seen: list[Seen]) -> int:
    """Spans of observation, ended by a goodbye, in which an iteration came back."""
    spans = [0]
    for record in seen:
        spans[-1] += record.name == "completed"
        if record.name == "bye":
            spans.append(0)
    return sum(span > 0 for span in spans)


def assert_whole(path: Path, spans: int, got: dict[str, list[int]]) -> None:
    """No law broken and nothing lost while we looked; what we did not see is NULL and said."""
    store = Store.open(path)
    try:
        ((checks, violations),) = store.rows("SELECT sum(checks), sum(violations) FROM audit")
        assert violations == 0 < checks
        assert store.rows("SELECT * FROM losses") == []
        told = store.rows("SELECT kind, text FROM notices WHERE kind IN ('fault', 'dropped')")
        assert told == []
        ((unknown,),) = store.rows("SELECT count(*) FROM iterations WHERE interval_ns IS NULL")
        assert TIMES / 2 < unknown == spans
        whole = store.rows(
            "SELECT external_key, output_tokens, engine_output_tokens FROM requests"
            " WHERE finish_reason = 'length' AND arrived_at_ns IS NOT NULL AND NOT broken"
        )
        counted = {key.removeprefix("cmpl-"): tokens for key, tokens, _ in whole}
        mine = {name: len(got[name]) for name in counted if name in got}
        assert mine
        assert mine == {name: counted[name] for name in mine}
        assert all(ours == theirs for _, ours, theirs in whole)
        cut = store.rows(
            "SELECT DISTINCT broken, e2e_ns, tpot_ns, engine_output_tokens FROM requests"
            " WHERE finish_reason = 'unknown'"
        )
        assert cut == [(True, None, None, None)]
        late = store.rows(
            "SELECT DISTINCT queue_ns, ttft_ns, e2e_ns FROM requests WHERE arrived_at_ns IS NULL"
        )
        assert late == [(None, None, None)]
    finally:
        store.close()
