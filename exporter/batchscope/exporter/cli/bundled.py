"""The bundled engine as a target: its cost model in virtual time, or its server as a child."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import IO, TYPE_CHECKING, Any

from batchscope.exporter.cli import children, drawn
from batchscope.exporter.cli.playing import DRAW_S, Heard
from batchscope.exporter.errors import BatchscopeError, ConfigError
from batchscope.workload.outcome import Outcome, Status
from batchscope.workload.prompts import prompt_ids
from batchscope.workload.replay import Played
from batchscope.workload.trace import Arrival, Trace

if TYPE_CHECKING:
    from batchscope.engine.config import EngineConfig
    from batchscope.engine.virtual import Served

START_S = 60.0


def settings(words: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` words as settings of the engine. ConfigError names what there is."""
    from batchscope.engine.config import EngineConfig

    kinds = {f.name: type(f.default) for f in fields(EngineConfig) if f.name != "model"}
    found = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in kinds:
            raise ConfigError(f"the engine has no setting {name!r}; it has {', '.join(kinds)}")
        found[name] = _value(name, text, kinds[name])
    return found


def _value(name: str, text: str, kind: type) -> Any:
    from batchscope.engine.__main__ import CHOICES

    known = CHOICES.get(name)
    if known and text not in known:
        raise ConfigError(f"{text!r} can't be {name}: it must be {', '.join(known)}")
    truth = {"true": True, "false": False}
    try:
        if kind is bool:
            return truth[text.lower()]
        return kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        raise ConfigError(f"{text!r} can't be {name}: it must be {kind.__name__}") from None


def virtual(given: Mapping[str, Any], *, seed: int, quiet: bool) -> Virtual:
    """The cost model with these settings. ConfigError for those that contradict each other."""
    from batchscope.engine.config import EngineConfig

    try:
        return Virtual(EngineConfig(**{**given, "runner": "cost"}), seed, quiet)
    except ValueError as why:
        raise ConfigError(f"the engine can't be set so: {why}") from None


@dataclass(frozen=True)
class Virtual:
    """The real scheduler over the cost model, on a clock that only work moves: no network, no late
    client. quiet: draw nothing.
    """

    config: EngineConfig
    seed: int
    quiet: bool
    target: str = "cost model in virtual time"

    def play(self, trace: Trace, *, word: str, heard: Heard | None = None) -> Played:  # noqa: ARG002
        """In virtual time; `heard` is not asked. ConfigError for what the engine can never run."""
        from batchscope.engine.limits import RequestRejected
        from batchscope.engine.virtual import Simulation

        simulation = Simulation(self.config)
        bar = _Bar(trace, word, quiet=self.quiet)
        try:
            simulation.run(
                trace, prompt=self._prompt, after_step=lambda _: bar.step(simulation.clock.now_ns)
            )
        except RequestRejected as why:
            raise ConfigError(f"{why}: cut the lengths, or change the engine by --set") from None
        seen = zip(trace, simulation.served, strict=True)
        outcomes = [_outcome(arrival, served) for arrival, served in seen]
        most = max((step.requests + step.waiting for step in simulation.steps), default=0)
        return Played(0, outcomes=outcomes, most_under_way=most)

    def _prompt(self, arrival: Any) -> list[int]:
        return prompt_ids(arrival, vocab=self.config.model.vocab_size, seed=self.seed)


@dataclass
class _Bar:
    """Draws how far virtual time is, now and then."""

    trace: Trace
    word: str
    quiet: bool
    shown: int = 0
    next_s: float = 0.0

    def step(self, now_ns: int) -> None:
        if self.quiet or time.monotonic() < self.next_s:
            return
        whole = self.trace.duration_ns / 1e9
        line = drawn.progress(self.word, min(now_ns / 1e9, whole), whole)
        self.shown = drawn.draw([line], sys.stderr, self.shown)
        self.next_s = time.monotonic() + DRAW_S


def _outcome(arrival: Arrival, served: Served) -> Outcome:
    """As a client beside the engine would have seen it."""
    seq, times = served.seq, array("q", served.token_ns)
    reason = None if seq.finish_reason is None else str(seq.finish_reason.value)
    patience_ns = arrival.abort_after_ns
    if patience_ns is not None and (reason == "abort" or times[-1] > arrival.at_ns + patience_ns):
        return _left(arrival, served, arrival.at_ns + patience_ns)
    outcome = Outcome(arrival, seq.request_id, arrival.at_ns, token_ns=times, status=Status.OK)
    outcome.sent_ns, outcome.ended_ns, outcome.finish_reason = arrival.at_ns, times[-1], reason
    outcome.prompt_tokens, outcome.output_tokens = len(seq.prompt), len(seq.output)
    return outcome


def _left(arrival: Arrival, served: Served, leaves_ns: int) -> Outcome:
    """What came until then: the engine ends the iteration that runs, and its client is gone."""
    times = array("q", (at for at in served.token_ns if at <= leaves_ns))
    outcome = Outcome(arrival, served.seq.request_id, arrival.at_ns, token_ns=times)
    outcome.sent_ns, outcome.ended_ns, outcome.status = arrival.at_ns, leaves_ns, Status.LEFT
    return outcome


@contextmanager
def serving(runner: str, given: Mapping[str, Any]) -> Iterator[str]:
    """The bundled engine behind its server on a free loopback port, ended afterwards; its URL.
    Raises BatchscopeError with its last words when it doesn't start.
    """
    url = f"http://127.0.0.1:{(port := children.free_port())}"
    command = [sys.executable, "-m", "batchscope.engine", "--port", str(port), "--runner", runner]
    with (
        tempfile.TemporaryFile("w+") as log,
        children.running([*command, *_flags(given)], log=log) as child,
    ):
        _await(f"{url}/health", child, log)
        yield url


def _flags(given: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        words += [f"--{flag if value else f'no-{flag}'}"] if isinstance(value, bool) else []
        words += [] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def _await(url: str, child: subprocess.Popen[bytes], log: IO[str]) -> None:
    deadline = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < deadline:
        if children.answers(url):
            return
        time.sleep(0.1)
    log.seek(0)
    lines = log.read().strip().splitlines()
    raise BatchscopeError(f"the engine did not start: {lines[-1] if lines else 'it said nothing'}")
