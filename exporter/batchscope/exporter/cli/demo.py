"""`batchscope demo`: engine, traffic, exporter and dashboard in one command, cleanly ended.

The parent only starts, watches and ends three processes of its own; what it shows it asks of the
exporter over HTTP, like anyone else.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from batchscope.exporter import addresses
from batchscope.exporter.cli import drawn
from batchscope.exporter.cli.children import end
from batchscope.exporter.cli.demo_engine import SHAPES
from batchscope.exporter.cli.summary import live_lines, summary
from batchscope.exporter.cli.workspace import workspace
from batchscope.exporter.errors import BatchscopeError
from batchscope.schemas.slo import DEMO_SLO, Slo, SloError

NO_TOKEN = {"BATCHSCOPE_TOKEN": "", "BATCHSCOPE_TOKEN_FILE": ""}
"""A demo is on loopback and asks its own exporter without one, whatever the environment says."""
START_S, END_S, WINDOW_S = 90.0, 15.0, 5.0
ENGINE_ENV = {"BATCHSCOPE": "1", "BATCHSCOPE_OVERHEAD": "0.25", "OMP_NUM_THREADS": "1"}
"""A toy model's step takes 2 ms on a fast CPU: there the hook is more than the 1 % after which an
adapter sheds members, and the demo is about members. Its matrices gain nothing from more threads,
which would spin on the cores that the other processes need."""


class DemoError(Exception):
    """The demo can't go on; the message is one sentence for the person who started it."""


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "--engine",
        choices=sorted(SHAPES),
        default="torch",
        help="runner: torch (a tiny model, CUDA if there) or cost (no torch needed)",
    )
    parser.add_argument("--seconds", type=_positive, help="end by itself after so long")
    parser.add_argument(
        "--once",
        action="store_true",
        help="run for --seconds (default 30) without the dashboard, print the summary, end",
    )
    parser.add_argument(
        "--json", action="store_true", help="stdout is one JSON object alone, printed at the end"
    )
    parser.add_argument(
        "--load",
        type=_positive,
        default=1.0,
        help="traffic as a multiple of the demo's own rate (default 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=2, help="of traffic and weights (default %(default)s)"
    )
    parser.add_argument(
        "--slo", default=str(DEMO_SLO), help="what counts as good (default %(default)s)"
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9477",
        help="exporter (default %(default)s; a free port if taken)",
    )
    parser.add_argument(
        "--dashboard-listen",
        default="127.0.0.1:8501",
        help="dashboard (default %(default)s; a free port if taken)",
    )
    parser.add_argument("--otlp", help="OTLP endpoint to send spans to")
    parser.add_argument("--store", type=Path, help="keep what was recorded in this new file")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when it ended well, 1 when figures disagree, 2 when it can't start."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        Slo.parse(args.slo)
        if args.store and args.store.exists():
            raise DemoError(f"{args.store} is there already: two runs would be added up")
        with workspace() as folder, contextlib.ExitStack() as children:
            return _run(args, folder, children)
    except (DemoError, SloError, BatchscopeError, OSError) as error:
        print(f"batchscope demo: {error}", file=sys.stderr)
        return 2


def _interrupt(_number: int, _frame: object) -> None:
    """Being ended is like Ctrl-C: everything of ours ends too."""
    raise KeyboardInterrupt


def _run(args: argparse.Namespace, folder: Path, children: contextlib.ExitStack) -> int:
    seconds = args.seconds or (30.0 if args.once else None)
    listen = _free(args.listen, quiet=args.once)
    board = None if args.once else _free(args.dashboard_listen, quiet=False)
    env = os.environ | ENGINE_ENV | NO_TOKEN | {"BATCHSCOPE_DIR": str(folder / "rings")}
    store = args.store or folder / "demo.duckdb"
    exporter = _start(children, _serve(args, listen, store), env, log=folder / "exporter.log")
    _wait_for(exporter, f"http://{listen}/readyz", folder / "exporter.log")
    if board:
        _start(children, _dashboard(board, listen), env, log=folder / "dashboard.log")
    engine = _start(children, _engine(args, seconds), env, log=folder / "engine.log", piped=True)
    traffic = _traffic(engine, folder / "engine.log")
    _announce(args, listen, board)
    url, quiet = f"http://{listen}", args.json and not sys.stderr.isatty()
    _watch([engine, exporter], url, seconds, quiet=quiet)
    if exporter.poll() is not None:
        raise DemoError(f"the exporter ended: {_last_word(exporter, folder / 'exporter.log')}")
    return _conclude(args, url, _totals(engine, folder / "engine.log"), traffic)


def _conclude(
    args: argparse.Namespace, url: str, totals: dict[str, Any], traffic: dict[str, Any]
) -> int:
    """Wait until the exporter has all that the engine did, then say how it went."""
    done = _settled(url, totals) | {"traffic": traffic}
    bad = done["audit"]["violations"] or not _agrees(done)
    if args.once or args.json:
        print(json.dumps(done, indent=None if args.json else 2))
    elif not bad:
        print(f"ended: {done['iterations']:,} iterations, every total equal to the engine's own")
    if bad:
        print("batchscope demo: the figures and the engine's own totals disagree", file=sys.stderr)
    return 1 if bad else 0


def _settled(url: str, totals: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + END_S
    while True:
        done = summary(url, totals)
        if _agrees(done) or time.monotonic() > deadline:
            return done
        time.sleep(0.2)


def _agrees(done: dict[str, Any]) -> bool:
    """Our totals are the engine's, key by key, exactly."""
    theirs = done["engine"]
    return all(done[key] == theirs[key] for key in theirs if key != "deferrals")


def _serve(args: argparse.Namespace, listen: str, store: Path) -> list[str]:
    command = ["serve", "--listen", listen, "--store", str(store), "--slo", args.slo]
    return [*_batchscope(), *command, *(["--otlp", args.otlp] if args.otlp else [])]


def _dashboard(board: str, listen: str) -> list[str]:
    return [*_batchscope(), "dashboard", "--listen", board, "--exporter", f"http://{listen}"]


def _engine(args: argparse.Namespace, seconds: float | None) -> list[str]:
    spec = asdict(SHAPES[args.engine]) | {
        "engine": args.engine,
        "seconds": seconds,
        "seed": args.seed,
        "load": args.load,
        "parent": os.getpid(),
    }
    return [sys.executable, "-m", "batchscope.exporter.cli.demo_engine", json.dumps(spec)]


def _batchscope() -> list[str]:
    return [sys.executable, "-m", "batchscope.exporter.cli"]


def _start(
    children: contextlib.ExitStack,
    command: list[str],
    env: dict[str, str],
    *,
    log: Path,
    piped: bool = False,
) -> subprocess.Popen[str]:
    """A child in a session of its own (Ctrl-C is ours alone), ended with us in any case."""
    with log.open("w") as sink:
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else sink,
            stderr=sink,
            text=True,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no lock, no thread yet
        )
    children.callback(_end, child)
    return child


def _die_with_parent() -> None:
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _end(child: subprocess.Popen[str]) -> None:
    end(child)
    if child.stdout:
        child.stdout.close()


def _free(listen: str, *, quiet: bool) -> str:
    """The address asked for, or one with a free port when that is taken: said unless quiet."""
    try:
        host, port = addresses.parse(listen)
    except ValueError as error:
        raise DemoError(f"can't use {listen!r} as an address: {error}") from None
    for candidate in (port, 0):
        with contextlib.suppress(OSError), addresses.bound((host, candidate)) as probe:
            found = addresses.written((host, probe.getsockname()[1]))
            if candidate != port and not quiet:
                print(f"{listen} is taken, using {found}", file=sys.stderr)
            return found
    raise DemoError(f"no port is free on {host}")


def _wait_for(exporter: subprocess.Popen[str], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while exporter.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):  # noqa: S310
            return
        time.sleep(0.1)
    raise DemoError(f"the exporter did not start: {_last_line(log)}")


def _traffic(engine: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """What it is about to be offered, said when it is ready: laws, scales, clipping, seed."""
    assert engine.stdout is not None
    line = engine.stdout.readline()
    if not line:
        raise DemoError(f"the engine did not start: {_last_line(log)}")
    traffic: dict[str, Any] = json.loads(line)
    return traffic


def _totals(engine: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    """The engine's own counters, printed as its last word."""
    if engine.poll() is None:
        engine.terminate()
    assert engine.stdout is not None
    with contextlib.suppress(json.JSONDecodeError):
        totals: dict[str, Any] = json.loads(engine.stdout.read())
        return totals
    raise DemoError(f"the engine died: {_last_word(engine, log)}")


def _last_word(child: subprocess.Popen[str], log: Path) -> str:
    """What a child said last; one that was killed said nothing of it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_S)
    number = -(child.returncode or 0)
    return f"killed by {signal.Signals(number).name}" if number > 0 else _last_line(log)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _announce(args: argparse.Namespace, listen: str, board: str | None) -> None:
    if args.once or args.json:
        return
    print(f"exporter   http://{listen}  (/metrics, /api/v1/queries)")
    if board:
        print(f"dashboard  http://{board}")
    print("Ctrl-C ends everything.\n", flush=True)


def _watch(
    children: list[subprocess.Popen[str]], url: str, seconds: float | None, *, quiet: bool
) -> None:
    """Draw the live summary once a second until a child ends or Ctrl-C comes."""
    started, shown = time.monotonic(), 0
    with contextlib.suppress(KeyboardInterrupt):
        while all(child.poll() is None for child in children):
            if not quiet:
                frame = _frame(url, time.monotonic() - started, seconds)
                shown = drawn.draw(frame, sys.stderr, shown)
            with contextlib.suppress(subprocess.TimeoutExpired):
                children[0].wait(1.0)


def _frame(url: str, elapsed: float, seconds: float | None) -> list[str]:
    from_unix_ns = time.time_ns() - int(WINDOW_S * 1e9)
    try:
        lines = live_lines(url, from_unix_ns=from_unix_ns)
    except BatchscopeError as error:
        lines = [str(error)]
    return [drawn.progress("running", elapsed, seconds), *lines]


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value
