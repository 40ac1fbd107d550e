"""The client against a real server on loopback: answers, refusals, silence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dashboard.processes import exporter, free_port

from batchscope.dashboard.client import Client, ClientError, Unreachable


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with exporter("--seconds", "5") as url:
        asking = Client(url)
        yield asking
        asking.close()


def test_an_answer_is_a_table_with_whole_64_bit_ids(client: Client) -> None:
    row = client.query("engine_choices").to_pylist()[0]
    scope = {"engine": row["engine"], "from_ns": 0, "to_ns": row["server_unix_ns"] + 1}
    slow = client.query("slowest_iterations", **scope, rows=1).to_pylist()[0]
    assert slow["ring_id"] > 2**63
    assert slow["interval_ns"] > 0


def test_none_leaves_a_parameter_at_its_default(client: Client) -> None:
    assert client.query("trust", engine="mini-0", dp_rank=None, from_ns=0, to_ns=1).num_rows == 1


def test_a_refusal_is_one_sentence_with_the_exporters_own_words(client: Client) -> None:
    with pytest.raises(ClientError, match="no query is called 'nonsense'"):
        client.query("nonsense")
    with pytest.raises(ClientError, match="'from_ns' must be BIGINT"):
        client.query("now", engine="a", from_ns="soon", to_ns=1)


def test_rings_that_cannot_be_followed_are_named(client: Client) -> None:
    assert client.refused() == []


def test_another_server_at_the_address_is_not_taken_for_an_exporter(client: Client) -> None:
    stranger = Client(f"{client.url}/log?")
    with pytest.raises(ClientError, match="is not a batchscope exporter"):
        stranger.refused()
    with pytest.raises(ClientError, match="is not a batchscope exporter"):
        stranger.query("now")
    stranger.close()


def test_silence_is_told_apart_from_refusal() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    nobody = Client(url)
    with pytest.raises(Unreachable, match=f"No exporter answers at {url}"):
        nobody.query("now")
    nobody.close()


def test_the_address_and_token_come_from_the_environment() -> None:
    here = Client.from_environment(
        {"BATCHSCOPE_URL": "http://127.0.0.1:1/", "BATCHSCOPE_TOKEN": "t"}
    )
    assert here.url == "http://127.0.0.1:1"
    assert Client.from_environment({}).url == "http://127.0.0.1:9477"
