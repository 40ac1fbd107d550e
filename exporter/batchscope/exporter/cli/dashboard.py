"""`batchscope dashboard`: the pages in a browser, of a running exporter or of a store file."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from batchscope.exporter import addresses
from batchscope.exporter.cli import children, exporter_client, stored
from batchscope.exporter.config import is_loopback
from batchscope.exporter.errors import ConfigError

_NO_LOGIN = (
    "{} is not loopback and the pages have no login: put an authenticating proxy in front, or give"
    " --allow-unauthenticated"
)


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--listen", default="127.0.0.1:8501", metavar="HOST:PORT", help="pages")
    exporter_client.add_exporter(parser)
    parser.add_argument("--store", type=Path, metavar="FILE", help="read this file instead")
    parser.add_argument(
        "--allow-unauthenticated", action="store_true", help="listen off loopback without a login"
    )


def run(args: argparse.Namespace) -> int:
    """Show the pages until told to stop."""
    if find_spec("streamlit") is None:
        raise ConfigError("dashboard needs streamlit: pip install 'batchscope[dashboard]'")
    try:
        host, port = addresses.parse(args.listen)
    except ValueError as error:
        raise ConfigError(f"can't use {args.listen!r} for --listen: {error}") from None
    if not (args.allow_unauthenticated or is_loopback(host)):
        raise ConfigError(_NO_LOGIN.format(host))
    url = exporter_client.url_of(args)
    _must_be_free(host, port)
    if args.store is None:
        os.execve(sys.executable, _streamlit(host, port), _environment(url))  # noqa: S606
    signal.signal(signal.SIGTERM, _leave)
    with (
        stored.reading(args.store) as url,
        children.running(_streamlit(host, port), env=_environment(url)) as pages,
    ):
        return pages.wait()


def _streamlit(host: str, port: int) -> list[str]:
    from batchscope.dashboard.launch import command

    return command(port=port, address=host)


def _environment(url: str) -> dict[str, str]:
    return dict(os.environ) | {"BATCHSCOPE_URL": url}


def _leave(number: int, _: object) -> None:
    """A signal as an exception, so that the children are taken down."""
    raise SystemExit(128 + number)


def _must_be_free(host: str, port: int) -> None:
    try:
        addresses.bound((host, port)).close()
    except OSError as error:
        where = addresses.written((host, port))
        raise ConfigError(f"can't listen on {where}: {error.strerror or error}") from None
