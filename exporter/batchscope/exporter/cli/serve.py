"""`batchscope serve`: follow the rings of a folder, store what they say, answer over HTTP.

What can be refused without it is refused before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import logging
import socket

from batchscope.exporter import addresses
from batchscope.exporter.config import Config, add_flags, from_process, is_loopback
from batchscope.exporter.errors import ConfigError


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    add_flags(parser)
    parser.add_argument(
        "--print-config", action="store_true", help="show every setting and where it comes from"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop. ConfigError for what can't be used, StoreError for the rest."""
    config = from_process(vars(args))
    if args.print_config:
        print("\n".join(config.lines()))
        return 0
    level = str(config["log"]).upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    listener = _listen(config)
    try:
        from batchscope.exporter.cli import serving

        serving.serve(config, listener)
    finally:
        listener.close()
    return 0


def _listen(config: Config) -> socket.socket:
    """The bound socket: before anything else, so that a taken port costs nothing."""
    host, port = config["listen"]
    if not is_loopback(host) and not config.token:
        raise ConfigError(
            f"{host} is not loopback: set BATCHSCOPE_TOKEN (or _TOKEN_FILE) to listen there"
        )
    try:
        return addresses.bound((host, port))
    except OSError as error:
        where = addresses.written((host, port))
        raise ConfigError(f"can't listen on {where}: {error.strerror or error}") from None
