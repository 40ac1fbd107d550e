"""`batchscope snapshot`: what a ring held, kept and told, the batch in flight by name."""

import json
import signal
from typing import Any

import pytest
from tests.support.commands import as_json, base, engine, until
from tests.support.records import body

from batchscope.exporter.cli import frozen
from batchscope.schemas import records as r
from batchscope.schemas.reasons import DeferralReason, NoticeKind, Position, codes
from batchscope.schemas.ring import RingWriter, list_rings

MS = 1_000_000
HELLO = {"engine": "blue", "kind": "mini", "version": "1", "model_name": "m", "dp_rank": 0}


class Ring:
    """A ring written record by record."""

    def __init__(self, folder: Any) -> None:
        self.writer = RingWriter(folder, HELLO, mono=lambda: 0, wall=lambda: 0, size=1 << 20)
        while not self.writer.grow():
            pass

    def put(self, record: Any, *, flags: Any = 0, tails: Any = None, **fields: Any) -> Any:
        self.writer.append(body(record, flags=flags, tails=tails, **fields))
        return self

    def arrived(self, serial: Any, *, at: Any, **more: Any) -> Any:
        return self.put(r.ARRIVED, serial=serial, at_ns=at * MS, prompt_tokens=9, **more)

    def scheduled(self, number: Any, *, at: Any, flags: Any = 0, **more: Any) -> Any:
        tails = {name: more.pop(name, []) for name in ("prefill", "decode", "deferred")}
        tails["decode"] = [(serial,) for serial in tails["decode"]]
        fields = {"iteration_id": number, "at_ns": at * MS, "running": 2, "waiting": 1, **more}
        self.put(r.SCHEDULED, flags=flags, tails=tails, **fields)
        self.writer.iteration_id = number + 1
        return self

    def completed(self, number: Any, *, at: Any) -> Any:
        return self.put(r.COMPLETED, iteration_id=number, at_ns=at * MS)

    def summary(self) -> Any:
        self.writer.close()
        return frozen.summary(self.writer.path, {"alive": False, "taken_unix_ns": 7})


@pytest.fixture
def ring(tmp_path: Any) -> Any:
    made = Ring(tmp_path)
    yield made
    made.writer.close()


def test_the_batch_in_flight_is_named_with_its_members(ring: Any) -> None:
    ring.arrived(1, at=0, key=0xAB).arrived(2, at=0, tails={"external_text": b"chat-2"})
    ring.scheduled(1, at=1, prefill=[(1, 0, 9)], prefill_tokens=9).completed(1, at=5)
    ring.scheduled(2, at=6, decode=[1], decode_tokens=1).completed(2, at=9)
    ring.scheduled(
        3, at=10, flags=r.SAME_DECODES, prefill=[(2, 4, 5)], prefill_tokens=5, decode_tokens=1
    )
    seen = ring.summary()
    assert seen["in_flight"] == [
        {
            "iteration_id": 3,
            "prefill_tokens": 5,
            "decode_tokens": 1,
            "last_record_after_ns": 0,
            "prefill": [{"serial": 2, "id": "chat-2", "start": 4, "tokens": 5}],
            "decode": [{"serial": 1, "id": "00000000000000ab"}],
        }
    ]
    assert seen["slowest"][0] == {
        "iteration_id": 1, "prefill_tokens": 9, "decode_tokens": 0, "took_ns": 4 * MS,
    }  # fmt: skip
    assert (seen["iterations"], seen["arrived"], seen["live"]) == (3, 2, 2)
    text = "\n".join(frozen.lines(seen))
    assert "iteration 3: prefill 5, decode 1 tokens" in text
    assert "prefill of chat-2 (serial 2): 5 tokens from 4 on" in text
    assert "decode of 00000000000000ab (serial 1)" in text


def test_members_that_were_not_recorded_are_unknown_and_not_nobody(ring: Any) -> None:
    ring.scheduled(1, at=1, flags=r.NO_MEMBERS, decode_tokens=7)
    seen = ring.summary()
    assert seen["in_flight"][0]["decode"] is None
    assert seen["in_flight"][0]["prefill"] is None
    assert any("members were not recorded" in line for line in frozen.lines(seen))


def test_a_goodbye_ends_what_was_known_and_leaves_nothing_in_flight(ring: Any) -> None:
    ring.arrived(1, at=0).scheduled(1, at=1, prefill=[(1, 0, 9)], prefill_tokens=9)
    ring.put(r.BYE, at_ns=2 * MS)
    seen = ring.summary()
    assert (seen["in_flight"], seen["live"], seen["iterations"]) == ([], 0, 1)


def test_reasons_and_notices_are_words(ring: Any) -> None:
    why, where = codes(DeferralReason), codes(Position)
    rows = [(1, why[DeferralReason.KV_BLOCKS], where[Position.HEAD]),
            (4, why[DeferralReason.KV_BLOCKS], where[Position.BEHIND])]  # fmt: skip
    ring.scheduled(1, at=1, deferred=rows).completed(1, at=2)
    kind = codes(NoticeKind)[NoticeKind.OVER_BUDGET]
    ring.put(r.NOTICE, at_ns=3 * MS, notice=kind, tails={"text": b"too dear"})
    seen = ring.summary()
    assert seen["deferrals"] == {"kv_blocks": 5}
    assert seen["notices"] == [{"kind": "over_budget", "text": "too dear"}]
    assert seen["to_unix_ns"] == 3 * MS


def test_an_empty_ring_has_nothing_to_say_and_says_so(ring: Any) -> None:
    seen = ring.summary()
    assert (seen["iterations"], seen["in_flight"], seen["from_unix_ns"]) == (0, [], None)
    assert any(line.endswith("nothing") for line in frozen.lines(seen))


def test_a_running_engine_is_frozen_and_shown_with_the_base_install(tmp_path: Any) -> None:
    target = tmp_path / "kept.zip"
    with engine(tmp_path / "rings", BATCHSCOPE="1"):
        until(lambda: list_rings(tmp_path / "rings"))
        done = base("snapshot", "mini", "-o", target, "--dir", tmp_path / "rings")
        assert done.stdout.startswith(f"{target} (")
    seen = as_json("snapshot", "--show", target)
    assert (seen["engine"], seen["alive"], seen["seconds"]) == ("mini", True, 60.0)
    assert base("snapshot", "--show", target).stdout.startswith("engine     mini (mini 0.1.0")


def test_of_a_killed_engine_the_ring_is_still_there(tmp_path: Any) -> None:
    with engine(tmp_path / "rings", BATCHSCOPE="1") as child:
        until(lambda: list_rings(tmp_path / "rings"))
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        (kept,) = as_json("snapshot", "--dir", tmp_path / "rings", "-o", tmp_path / "k")["files"]
    assert as_json("snapshot", "--show", kept)["alive"] is False
    again = base("snapshot", "--dir", tmp_path / "rings", "-o", tmp_path / "k", code=1)
    assert again.stderr == f"batchscope: can't write {kept}: File exists\n"


def test_which_engine_is_asked_where_there_are_several(tmp_path: Any) -> None:
    rings = tmp_path / "rings"
    with engine(rings, BATCHSCOPE="1"), engine(rings, BATCHSCOPE="1", BATCHSCOPE_ENGINE="blue"):
        until(lambda: len(list_rings(rings)) == 2)
        done = base("snapshot", "--dir", rings, code=2)
        assert done.stderr.startswith("batchscope: which one? ")
        done = base("snapshot", "mini", "blue", "-o", "x", "--dir", rings, code=2)
        assert "2 engines are meant" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--show", "/no/such.zip"], 2, "there is no file /no/such.zip"),
        (["--show", __file__], 2, "is not a snapshot of a ring"),
        ([], 1, "no engine records in"),
    ],
)
def test_a_mistake_is_one_sentence(words: Any, code: Any, said: Any, tmp_path: Any) -> None:
    done = base("snapshot", *words, "--dir", tmp_path, code=code)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_json_is_alone_on_stdout_and_whole(ring: Any) -> None:
    assert json.loads(json.dumps(ring.summary()))["engine"] == "blue"
