"""HOST:PORT: what is read is written the same, and nothing else is read."""

import socket

import pytest

from batchscope.exporter import addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9477", ("127.0.0.1", 9477)),
        ("[::1]:9477", ("::1", 9477)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, address: addresses.Address) -> None:
    assert addresses.parse(text) == address
    assert addresses.written(address) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "9477", ":9477", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"),
        *("::1:9477", "[::1:9477", "http://127.0.0.1:9477", "127.0.0.1:9477/x", "a@b:9477"),
    ],
)
def test_what_is_no_address_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it as 127\.0\.0\.1:9477 or \[::1\]:9477"):
        addresses.parse(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_bound_on_either_family(host: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listener = addresses.bound((host, 0))
    except OSError:
        if host == "127.0.0.1":
            raise
        pytest.skip("no IPv6 loopback here")
    with listener, socket.create_connection(listener.getsockname()[:2], timeout=5):
        assert listener.getsockname()[1] > 0
