"""Asking a running exporter over HTTP, with the standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from batchscope.exporter.errors import BatchscopeError, ConfigError

DEFAULT_URL = "http://127.0.0.1:9477"
TIMEOUT_S = 15.0


class Unreachable(BatchscopeError):  # noqa: N818 - a state
    """Nobody answers there."""


class Refused(BatchscopeError):  # noqa: N818 - an answer
    """The exporter said no; `status` is HTTP's."""

    def __init__(self, sentence: str, *, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def add_exporter(parser: argparse.ArgumentParser) -> None:
    """The flag that says whom to ask."""
    parser.add_argument(
        "--exporter", metavar="URL", help=f"whom to ask (BATCHSCOPE_URL, {DEFAULT_URL})"
    )


def url_of(args: argparse.Namespace, env: Mapping[str, str] = os.environ) -> str:
    """The exporter's URL by flag, environment or default. ConfigError for what is no URL."""
    url = str(args.exporter or env.get("BATCHSCOPE_URL") or DEFAULT_URL).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"can't use {url!r} for --exporter: write it as {DEFAULT_URL}")
    return url


def get(url: str, path: str, *, env: Mapping[str, str] = os.environ) -> Any:
    """The JSON at a path. Unreachable, Refused; the token is BATCHSCOPE_TOKEN."""
    return _ask(url, urllib.request.Request(url + path, headers=_headers(env)))  # noqa: S310


def post(url: str, path: str, content: Any, *, env: Mapping[str, str] = os.environ) -> Any:
    """Send JSON to a path; the JSON that comes back. As `get`."""
    headers = _headers(env) | {"Content-Type": "application/json"}
    body = json.dumps(content).encode()
    return _ask(url, urllib.request.Request(url + path, body, headers))  # noqa: S310


def _headers(env: Mapping[str, str]) -> dict[str, str]:
    token = env.get("BATCHSCOPE_TOKEN")
    known = {"Authorization": f"Bearer {token}"} if token else {}
    return {"Accept": "application/json"} | known


def _ask(url: str, request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310 (checked: http)
            return json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(_detail(error), status=error.code) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise Unreachable(f"no exporter answers at {url} ({why}): start batchscope serve") from None


def _detail(error: urllib.error.HTTPError) -> str:
    """The exporter's own sentence where it sent one."""
    try:
        said = json.load(error).get("detail")
    except (ValueError, AttributeError, OSError):
        said = None
    hint = "; set BATCHSCOPE_TOKEN" if error.code == 401 else ""
    return f"{said or f'HTTP {error.code}'}{hint}"
