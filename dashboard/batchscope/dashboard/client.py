"""Asks the exporter's API: named queries in, Arrow tables out. Used by the views only.

Every failure is a ClientError whose message is one sentence for the page.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import httpx
import pyarrow as pa

DEFAULT_URL = "http://127.0.0.1:9477"
ARROW = "application/vnd.apache.arrow.stream"
NOT_OURS = "What answers at {url} is not a batchscope exporter."
TIMEOUT_S = 12.0
"""A little more than the exporter's own limit on a query, so that its answer is the one shown."""

Value = int | str | None


class ClientError(Exception):
    """The exporter can't be asked, or refused; the message says which, in one sentence."""


class Unreachable(ClientError):  # noqa: N818  (a state, shown as an empty page)
    """Nobody answers at the exporter's address."""


class Client:
    """A connection to one exporter. Thread-safe, as httpx.Client is."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Client:
        """To BATCHSCOPE_URL (default the loopback exporter), with BATCHSCOPE_TOKEN if set."""
        return cls(env.get("BATCHSCOPE_URL", DEFAULT_URL), token=env.get("BATCHSCOPE_TOKEN"))

    def query(self, name: str, **params: Value) -> pa.Table:
        """The answer to one named query; None leaves a parameter at its default.

        Raises ClientError.
        """
        given = {key: str(value) for key, value in params.items() if value is not None}
        return _table(self._get(f"/api/v1/query/{name}", given, accept=ARROW))

    def refused(self) -> list[str]:
        """Rings that the exporter can't follow, one reason each. Raises ClientError."""
        try:
            rings = self._get("/api/v1/engines", {}, accept="application/json").json()["refused"]
        except (ValueError, KeyError, TypeError):
            raise ClientError(NOT_OURS.format(url=self.url)) from None
        return [str(ring["reason"]) for ring in rings]

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def _get(self, path: str, params: Mapping[str, str], *, accept: str) -> httpx.Response:
        try:
            response = self._http.get(path, params=params, headers={"Accept": accept})
        except httpx.TimeoutException:
            raise ClientError(
                f"The exporter at {self.url} took more than {TIMEOUT_S:g} s."
            ) from None
        except httpx.HTTPError:
            raise Unreachable(f"No exporter answers at {self.url}.") from None
        if response.status_code != httpx.codes.OK:
            raise ClientError(_refusal(response))
        return response


def _table(response: httpx.Response) -> pa.Table:
    try:
        with pa.ipc.open_stream(response.content) as stream:
            return stream.read_all()
    except pa.ArrowInvalid:
        url = f"{response.url.scheme}://{response.url.netloc.decode()}"
        raise ClientError(NOT_OURS.format(url=url)) from None


def _refusal(response: httpx.Response) -> str:
    """The detail of an RFC 9457 problem, or the bare status."""
    try:
        detail = response.json().get("detail")
    except (ValueError, AttributeError):
        detail = None
    return f"The exporter refused: {detail or f'HTTP {response.status_code}'}."
