"""What of a KV connector is a hop, on fakes; the real connector is under tests/engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.adapters.test_vllm_translation import SHAPE

from batchscope.adapters.vllm.shape import Shape
from batchscope.adapters.vllm.transfers import LOADING, MOST_UNDER_WAY, Hop, Transfers

NOBODY = SimpleNamespace(requests={}, failed_recving_kv_req_ids=set())


def transfers(**shape: Any) -> Transfers:
    return Transfers(Shape(**{**SHAPE, "hops": True, "counts_bytes": True, **shape}))


def waiting(name: str, status: str = LOADING, **params: Any) -> Any:
    named = SimpleNamespace(name=status)
    return SimpleNamespace(request_id=name, status=named, kv_transfer_params=params)


def said(*, come: tuple[str, ...] = (), gone: tuple[str, ...] = (), **stats: list[int]) -> Any:
    told = {"finished_recving": set(come), "finished_sending": set(gone)}
    return SimpleNamespace(**told, kv_connector_stats=SimpleNamespace(data=stats))


def ended(of: Transfers, told: Any, scheduler: Any = NOBODY) -> dict[str, Hop]:
    return {request.request_id: hop for request, hop in of.ended(scheduler, told)}


def loading(*names: str, **shape: Any) -> Transfers:
    of = transfers(**shape)
    for at_ns, name in enumerate(names):
        of.ask(waiting(name, remote_engine_id="far"), 40, at_ns=at_ns)
    of.begin()
    return of


def test_a_load_within_the_batch_is_no_hop() -> None:
    of = transfers()
    of.ask(waiting("now", "RUNNING"), 40, at_ns=1)
    of.ask(waiting("nothing"), 0, at_ns=2)
    of.begin()
    assert ended(of, said(come=("now", "nothing"))) == {}


def test_a_load_has_its_blocks_and_the_bytes_counted_meanwhile() -> None:
    of = loading("a")
    assert ended(of, said(bytes_transferred=[5, 6])) == {}
    assert ended(of, said(come=("a",), bytes_transferred=[7])) == {
        "a": Hop(start_ns=0, direction=1, peer="far", blocks=3, nbytes=18)
    }
    assert ended(of, said(come=("a",))) == {}, "it has ended"


def test_whose_bytes_they_are_is_unknown_once_two_were_under_way() -> None:
    of = loading("a", "b")
    assert ended(of, said(come=("a",), bytes_transferred=[5]))["a"].nbytes is None
    assert ended(of, said(come=("b",), bytes_transferred=[5]))["b"].nbytes is None


def test_blocks_of_several_groups_are_unknown() -> None:
    assert ended(loading("a", groups=2), said(come=("a",)))["a"].blocks is None


def test_a_failed_load_is_known_before_it_ends() -> None:
    scheduler = SimpleNamespace(requests={}, failed_recving_kv_req_ids={"a", "other"})
    assert ended(loading("a"), said(come=("a",)), scheduler)["a"].failed
    of = loading("b")
    of.spoil("b")
    of.spoil("unheard of")
    assert ended(of, said(come=("b",)))["b"].failed


def test_what_a_request_leaves_behind_is_sent_unless_it_was_still_coming() -> None:
    of = loading("coming")
    of.hold(waiting("coming"), at_ns=5)
    of.hold(waiting("done"), at_ns=6)
    assert ended(of, said(gone=("coming", "done"))) == {"done": Hop(6, 2, None)}


def test_sends_have_failed_where_all_that_ended_had_lapsed() -> None:
    of = transfers()
    for name in "abc":
        of.hold(waiting(name), at_ns=1)
    assert ended(of, said(gone=("a",), num_kv_expired_reqs=[1]))["a"].failed
    both = ended(of, said(gone=("b", "c"), num_kv_expired_reqs=[1]))
    assert [hop.failed for hop in both.values()] == [False, False], "which one isn't told"


def test_hops_whose_end_is_never_told_are_forgotten() -> None:
    of = loading(*map(str, range(MOST_UNDER_WAY + 1)))
    assert ended(of, said(come=("0",))) == {}
    assert len(ended(of, said(come=tuple(map(str, range(MOST_UNDER_WAY + 1)))))) == MOST_UNDER_WAY
