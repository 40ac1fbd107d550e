"""The front end's adapter on a stand-in of vLLM's OutputProcessor, in each way to hand tokens on.

The real ones are in tests/engines/test_vllm_frontend.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.adapters.ring_records import Seen, records

from batchscope.adapters.vllm import frontend
from batchscope.schemas.reasons import FinishReason, codes
from batchscope.schemas.ring import (
    LEVEL_ITERATIONS,
    LEVEL_MEMBERS,
    RingReader,
    list_rings,
    set_level,
)

CODES = codes(FinishReason)
STAMP_S, STAMP_NS = 12.5, 12_500_000_000


@dataclass
class Output:
    request_id: str
    new_token_ids: list[int]
    finish_reason: Any = None


@dataclass
class State:
    request_id: str
    output_kind: Any
    parent_req: Any = None
    stream_interval: int = 1
    sent_tokens_offset: int = 0
    prompt_len: int = 5
    max_tokens_param: int = 20
    lora_name: str | None = None
    stats: Any = None
    detokenizer: Any = field(default_factory=lambda: SimpleNamespace(output_token_ids=[]))


class Processor:
    """What the adapter touches of an OutputProcessor; it strikes who finished, as vLLM does."""

    def __init__(self) -> None:
        self.request_states: dict[str, State] = {}
        self.calls = 0

    def add_request(self, request: Any, prompt: str | None, **made: Any) -> None:
        if request.request_id not in self.request_states:
            self.request_states[request.request_id] = State(request.request_id, **made)

    def process_outputs(
        self,
        engine_core_outputs: Sequence[Output],
        engine_core_timestamp: float | None = None,
        iteration_stats: Any = None,
    ) -> int:
        for output in engine_core_outputs:
            state = self.request_states.get(output.request_id)
            if state is not None:
                self._process(state, output)
        self.calls += 1
        return self.calls

    def _process(self, state: State, output: Output) -> None:
        tokens = state.detokenizer.output_token_ids
        tokens += output.new_token_ids
        waits = len(tokens) - state.sent_tokens_offset < state.stream_interval
        if state.stream_interval > 1 and not (waits and state.sent_tokens_offset):
            state.sent_tokens_offset = len(tokens)
        if output.finish_reason is not None:
            del self.request_states[output.request_id]


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of the package as the adapter imports."""
    parts: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.envs": {},
        "vllm.v1": {},
        "vllm.v1.engine": {"EngineCoreRequest": type("R", (), {"__struct_fields__": ()})},
    }
    parts["vllm.v1.engine"]["EngineCoreRequest"].__struct_fields__ = ("external_req_id",)
    for name, attributes in parts.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]  # type: ignore[attr-defined]


class FrontEnd:
    """A watched processor and what its ring says."""

    def __init__(self, folder: Path, *, active: bool = True, **env: str) -> None:
        self.folder, self.processor = folder, Processor()
        self.env = {"BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0", **env}
        self.env |= {"BATCHSCOPE_REQUEST_IDS": "plain", **({"BATCHSCOPE": "1"} if active else {})}

    def attach(self) -> Any:
        self.handle: Any = frontend.attach(self.processor, self.env)
        return self.handle

    def arrive(self, name: str, kind: str = "DELTA", *, came_s: float = 0.0, **state: Any) -> None:
        request = SimpleNamespace(request_id=name, arrival_time=came_s)
        self.processor.add_request(request, None, output_kind=SimpleNamespace(name=kind), **state)

    def step(self, tokens: dict[str, int], end: str | None = None, *last: str) -> None:
        """One step of the core; `last` are at their end by reason `end`."""
        reason = SimpleNamespace(name=end)
        outputs = [Output(n, [1] * k, reason if n in last else None) for n, k in tokens.items()]
        self.processor.process_outputs(outputs, engine_core_timestamp=STAMP_S)

    def seen(self, *kinds: str) -> list[Seen]:
        (path,) = list_rings(self.folder)
        return [record for record in records(RingReader(path)) if record.name in kinds]

    def given(self) -> list[dict[str, int]]:
        """Of each DELIVERED: request -> tokens."""
        names = {r["serial"]: r["key_text"] for r in self.seen("arrived", "live")}
        return [{names[s]: n for s, n in r["tokens"]} for r in self.seen("delivered")]

    def ends(self) -> list[tuple[str, int, int]]:
        names = {r["serial"]: r["key_text"] for r in self.seen("arrived", "live")}
        return [
            (names[r["serial"]], r["reason"], r["output_tokens"]) for r in self.seen("finished")
        ]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[FrontEnd]:
    made = FrontEnd(tmp_path / "rings")
    made.attach()
    yield made
    made.handle.detach()


def test_a_stream_gets_its_tokens_step_by_step_and_ends_with_their_sum(front: FrontEnd) -> None:
    front.arrive("a")
    front.arrive("b")
    front.step({"a": 1, "b": 2})
    front.step({"a": 0, "b": 1})
    front.step({"a": 1, "b": 1}, "STOP", "a")
    assert front.given() == [{"a": 1, "b": 2}, {"b": 1}, {"a": 1, "b": 1}]
    assert front.ends() == [("a", CODES[FinishReason.STOP], 2)]
    assert {record["ready_at_ns"] for record in front.seen("delivered")} == {STAMP_NS}


def test_a_whole_reply_is_handed_over_at_its_end(front: FrontEnd) -> None:
    front.arrive("a", "FINAL_ONLY")
    for _ in range(3):
        front.step({"a": 2})
    assert front.given() == []
    front.step({"a": 1}, "LENGTH", "a")
    assert front.given() == [{"a": 7}]
    assert front.ends() == [("a", CODES[FinishReason.LENGTH], 7)]


def test_of_n_answers_in_one_reply_the_first_to_be_ready_wait_for_the_last(front: FrontEnd) -> None:
    parent = SimpleNamespace(request_id="many-0-12345678")
    for name in ("0_m", "1_m"):
        front.arrive(name, "FINAL_ONLY", parent_req=parent)
    front.step({"0_m": 2, "1_m": 1}, "LENGTH", "0_m")
    assert front.given() == []
    assert front.ends() == []
    front.step({"1_m": 4}, "LENGTH", "1_m")
    assert front.given() == [{"0_m": 2, "1_m": 5}]
    assert {name: n for name, _, n in front.ends()} == {"0_m": 2, "1_m": 5}
    assert {r["external_text"] for r in front.seen("arrived")} == {"many-0"}


def test_a_stream_interval_collects_tokens(front: FrontEnd) -> None:
    front.arrive("a", stream_interval=3)
    for _ in range(6):
        front.step({"a": 1})
    front.step({"a": 1}, "LENGTH", "a")
    assert front.given() == [{"a": 1}, {"a": 3}, {"a": 3}]


def test_who_is_aborted_ends_at_the_next_outputs_and_its_late_ones_are_nobodys(
    front: FrontEnd,
) -> None:
    front.arrive("a")
    front.arrive("b")
    front.step({"a": 1, "b": 1})
    del front.processor.request_states["a"]
    front.step({"a": 1, "b": 1})
    assert front.ends() == [("a", CODES[FinishReason.ABORT], 1)]
    assert front.given() == [{"a": 1, "b": 1}, {"b": 1}]


def test_an_aborted_reply_was_never_handed_over(front: FrontEnd) -> None:
    parent = SimpleNamespace(request_id="many")
    for name in ("0_m", "1_m"):
        front.arrive(name, "FINAL_ONLY", parent_req=parent)
    front.step({"0_m": 2, "1_m": 1}, "LENGTH", "0_m")
    front.processor.request_states.clear()
    front.step({})
    assert front.given() == []
    assert sorted(name for name, _, tokens in front.ends() if tokens == 0) == ["0_m", "1_m"]
    assert not (subject := front.handle.subject).waiting
    assert not subject.siblings
    assert subject.keepers == 0


def test_a_text_that_met_a_stop_string_ended_by_stop(front: FrontEnd) -> None:
    front.arrive("a")
    outputs = [Output("a", [1])]
    original = front.processor._process

    def stopped(state: State, output: Output) -> None:
        original(state, output)
        del front.processor.request_states["a"]

    front.processor._process = stopped  # type: ignore[method-assign]
    front.processor.process_outputs(outputs, STAMP_S)
    assert front.ends() == [("a", CODES[FinishReason.STOP], 1)]


def test_an_arrival_is_as_old_as_vllms_own_stamp_says(tmp_path: Path) -> None:
    front = FrontEnd(tmp_path)
    made = frontend.adapter(front.processor, wall=lambda: 1000.5)
    guests = made.subject(front.processor)
    front.arrive("a", came_s=1000.25)
    guest = guests.welcome(SimpleNamespace(request_id="a", arrival_time=1000.25))
    assert guest is not None
    assert (guest.came_ns, guest.facts.engine_arrival_ns) == (250_000_000, 1_000_250_000_000)
    assert guests.welcome(SimpleNamespace(request_id="a", arrival_time=1000.25)) is None
    front.arrive("b", came_s=2000.0)
    late = guests.welcome(SimpleNamespace(request_id="b", arrival_time=2000.0))
    assert late is not None
    assert late.came_ns == 0, "a wall clock that was set back"


def test_dormant_until_the_word_then_it_knows_who_was_here(tmp_path: Path) -> None:
    front = FrontEnd(tmp_path / "rings", active=False)
    handle = front.attach()
    for name, kind in (("a", "DELTA"), ("w", "FINAL_ONLY")):
        front.arrive(name, kind)
    front.step({"a": 3, "w": 3})
    assert list_rings(front.folder) == []
    set_level(front.folder, handle.ring_uuid, LEVEL_MEMBERS)
    while not list_rings(front.folder):
        front.step({"a": 1, "w": 1})
    before = front.processor.request_states["a"].detokenizer.output_token_ids
    front.step({"a": 1, "w": 1}, "LENGTH", "a", "w")
    live = {r["key_text"]: r["output_tokens"] for r in front.seen("live")}
    ends = {name: tokens for name, _, tokens in front.ends()}
    given = front.given()
    assert live["a"] + sum(each.get("a", 0) for each in given) == ends["a"] == len(before)
    assert given[-1]["w"] == ends["w"] == len(before)
    set_level(front.folder, handle.ring_uuid, 0)
    front.step({})
    assert len(front.seen("bye")) == 1
    handle.detach()


def test_without_members_the_ring_says_how_many_not_who(tmp_path: Path) -> None:
    front = FrontEnd(tmp_path / "rings")
    handle = front.attach()
    set_level(front.folder, handle.ring_uuid, LEVEL_ITERATIONS)
    front.arrive("a")
    front.step({"a": 1})
    front.step({"a": 1})
    assert [(r["n_tokens"], r["tokens"]) for r in front.seen("delivered")][-1] == (1, [])
    handle.detach()


def test_hello_names_the_role_and_detaching_restores_the_very_same_methods(
    front: FrontEnd,
) -> None:
    (path,) = list_rings(front.folder)
    hello = RingReader(path).hello
    assert (hello["role"], hello["dp_rank"], hello["version"]) == ("frontend", None, "0.32.0")
    assert hello["provides"]["delivered.at_ns"] == "exact"
    assert set(vars(front.processor)) >= {"process_outputs", "add_request"}
    front.handle.detach()
    assert set(vars(front.processor)) == {"request_states", "calls"}


def test_a_translation_that_raises_changes_no_result_and_leaves_for_good_after_three(
    front: FrontEnd,
) -> None:
    front.arrive("a")
    front.handle.subject.known = None
    results = [front.processor.process_outputs([Output("a", [1])], STAMP_S) for _ in range(4)]
    assert results == [1, 2, 3, 4]
    assert front.handle.faults.count == 3
    assert not front.handle.attached
    assert set(vars(front.processor)) == {"request_states", "calls"}


def test_a_front_end_that_lacks_something_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = SimpleNamespace(request_states={}, process_outputs=lambda outputs: None)
    before = dict(vars(bare))
    env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(tmp_path)}
    assert not frontend.attach(bare, env).attached
    assert vars(bare) == before
    assert "has no process_outputs, add_request" in capsys.readouterr().err
    assert not frontend.attach(Processor(), env | {"BATCHSCOPE": "0"}).attached
    assert os.listdir(tmp_path) == []


def test_whoever_makes_a_front_end_lends_its_models_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("vllm.v1.engine.output_processor")
    module.OutputProcessor = type("OutputProcessor", (Processor,), {"__init__": Processor.__init__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.output_processor", module)
    for name, value in FrontEnd(tmp_path / "rings").env.items():
        monkeypatch.setenv(name, value)
    frontend.watch()
    frontend.watch()

    def engine(vllm_config: Any) -> Any:
        return module.OutputProcessor()

    model = SimpleNamespace(served_model_name=["tiny"], model="/models/tiny")
    made = engine(SimpleNamespace(model_config=model))
    (path,) = list_rings(tmp_path / "rings")
    assert RingReader(path).hello["model_name"] == "tiny"
    made.process_outputs.batchscope_watch.detach()
