"""What stands before the API: who may ask, from where, and how much may be sent. Plain ASGI."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 64 << 10
OPEN_PATHS = ("/healthz", "/readyz")
"""Probes need no token: an orchestrator has none, and they tell nothing."""
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Guard:
    """Wraps an ASGI app. hosts: names it answers to without a token, against DNS rebinding."""

    app: App
    token: str | None
    hosts: tuple[str, ...] = _LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with a problem (RFC 9457), or pass on with the body read and bounded."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
        elif scope["method"] in _WRITES:
            await self._with_body(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """(status, why), None to let it pass."""
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if self.token and scope["path"] not in OPEN_PATHS and not self._knows(headers):
            return 401, "send the token as Authorization: Bearer"
        if not self.token and _host(f"//{headers.get('host', '')}") not in self.hosts:
            return 421, "this exporter only answers to local names"
        origin = headers.get("origin")
        if scope["method"] in _WRITES and origin and not self._is_ours(origin, headers):
            return 403, "pages of another origin may not write"
        return None

    def _knows(self, headers: dict[str, str]) -> bool:
        kind, _, sent = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(
            sent.strip().encode("latin-1"), (self.token or "").encode("utf-8")
        )

    def _is_ours(self, origin: str, headers: dict[str, str]) -> bool:
        host = _host(origin)
        same = host == _host(f"//{headers.get('host', '')}")
        return host in self.hosts or (self.token is not None and same)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if body is None:
            await _refuse(send, 413, f"a body may have {MAX_BODY_BYTES} bytes")
            return
        message: Message = {"type": "http.request", "body": body, "more_body": False}
        waiting = [message]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        await self.app(scope, replay, send)


async def _read(receive: Receive) -> bytes | None:
    """The whole body, None when it is too long (the rest stays unread)."""
    parts: list[bytes] = []
    while sum(map(len, parts)) <= MAX_BODY_BYTES:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            body = b"".join(parts)
            return body if len(body) <= MAX_BODY_BYTES else None
    return None


def problem(status: int, detail: str) -> bytes:
    """The body of an RFC 9457 problem."""
    named = TITLES.get(status, "Refused")
    return json.dumps(
        {"type": "about:blank", "title": named, "status": status, "detail": detail}
    ).encode()


TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    413: "Too large",
    421: "Misdirected",
    422: "Not understood",
    429: "Too many",
    500: "A fault in batchscope",
    503: "Not now",
}
PROBLEM_TYPE = "application/problem+json"


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = problem(status, detail)
    headers = [(b"content-type", PROBLEM_TYPE.encode()), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
