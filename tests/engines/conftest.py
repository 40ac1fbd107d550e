"""What tests of real engines share: a limit for each, so that an engine that hangs fails one test
and not the whole run, and one run of all scenarios of a version's scheduler.
"""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import FrameType

import pytest
from tests.engines.versions import Scenarios, drive, versions

LIMIT_S = 900
"""For a test with the engines that are started for it: a busy machine takes minutes for one."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Setup, call and teardown of one test, under one alarm."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{item.nodeid} took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", params=versions())
def scenarios(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Scenarios:
    """Of one version: scenario -> its run, or why it can't be brought there."""
    return drive(request.param, tmp_path_factory.mktemp(f"vllm-{request.param}"))
