"""How the vLLM plugin behaves where it has nothing to do, or finds a vLLM that it doesn't know."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from batchscope.adapters import vllm
from batchscope.adapters.vllm.caution import careful

ACTIVE = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": "/nowhere"}


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def pretend(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> None:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(**attributes))


def test_zero_in_the_environment_does_not_even_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATCHSCOPE", "0")
    monkeypatch.setitem(sys.modules, "vllm", None)
    vllm.register()
    assert not vllm.attach(SimpleNamespace(), {"BATCHSCOPE": "0"}).attached
    assert capsys.readouterr().err == ""


def test_a_vllm_without_a_scheduler_is_off_with_a_line_for_each_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BATCHSCOPE", raising=False)
    pretend(monkeypatch)
    vllm.register()
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in said] == ["batchscope: off"] * 2


def test_registering_twice_wraps_once_and_every_scheduler_is_announced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Scheduler:
        made = 0

        def __init__(self, size: int) -> None:
            type(self).made += size

    monkeypatch.delenv("BATCHSCOPE", raising=False)
    pretend(monkeypatch, __version__="0.32.0")
    for name in ("vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    module = SimpleNamespace(Scheduler=Scheduler)
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", module)
    front = SimpleNamespace(OutputProcessor=type("OutputProcessor", (), {}))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.output_processor", front)
    vllm.register()
    wrapped = Scheduler.__init__
    vllm.register()
    assert Scheduler.__init__ is wrapped

    class Own(Scheduler):
        def __init__(self) -> None:
            super().__init__(size=3)

    assert (Own().made, vars(Own())) == (3, {})
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("left alone" in line for line in said), "it lacks all that we need"


def test_a_scheduler_that_lacks_something_is_left_alone_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, __version__="0.99.0")
    scheduler = SimpleNamespace(schedule=lambda: None, requests={}, waiting=[], running=[])
    before = dict(vars(scheduler))
    assert not vllm.attach(scheduler, ACTIVE).attached
    assert vars(scheduler) == before
    said = one_line(capsys)
    assert "vLLM 0.99.0 has no " in said
    assert "update_from_output" in said


def test_a_version_never_run_stays_dormant_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "BATCHSCOPE" not in careful(ACTIVE, "0.99.0")
    assert "0.99.0 is not one of 0.8 to 0.33" in one_line(capsys)
    assert careful(ACTIVE, "0.32.0+cpu") is ACTIVE
