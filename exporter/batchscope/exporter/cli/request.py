"""`batchscope request ID`: the life of one request, by the id that a client complains about."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchscope.exporter.cli import engines, exporter_client, handover, story
from batchscope.exporter.errors import BatchscopeError
from batchscope.schemas.request_keys import read_salt, request_key
from batchscope.schemas.ring import ring_folder

Row = dict[str, Any]
NOT_FOUND = 404


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("id", metavar="ID", help="the client's id, or the request's key")
    parser.add_argument("--json", action="store_true", help="all that is known, as JSON")
    exporter_client.add_exporter(parser)
    engines.add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Print the story of every request with this id; 1 when there is none."""
    url = exporter_client.url_of(args)
    found = find(url, args.id, folder=args.dir or ring_folder(os.environ))
    names = _engine_names(url)
    told = [{"engine": names.get(int(one["ring_id"])), **one} for one in found["requests"]]
    if args.json:
        print(json.dumps(found | {"requests": told}))
        return 0
    stories = [story.lines(one, asked=args.id) for one in told]
    stories += [handover.lines(one, asked=args.id) for one in found["handovers"]]
    print("\n\n".join("\n".join(lines) for lines in stories))
    return 0


def find(url: str, request_id: str, *, folder: Path | None) -> dict[str, list[Row]]:
    """Requests by id, and how they passed between engines; BatchscopeError when there are none.

    An exporter that only reads a store has no salt: then this folder's is tried.
    """
    salt = None if folder is None else read_salt(folder)
    try:
        return _requests(url, request_id)
    except exporter_client.Refused as refused:
        if salt is None or refused.status != NOT_FOUND:
            raise
    return _requests(url, f"{request_key(request_id, salt):016x}", asked=request_id)


def _requests(url: str, key: str, *, asked: str | None = None) -> dict[str, list[Row]]:
    path = f"/api/v1/request/{quote(key, safe='')}"
    try:
        found: dict[str, list[Row]] = exporter_client.get(url, path)
    except exporter_client.Refused as refused:
        if asked is None:
            raise
        raise BatchscopeError(str(refused).replace(key, asked)) from None
    return found


def _engine_names(url: str) -> dict[int, str]:
    listed = exporter_client.get(url, "/api/v1/engines")["engines"]
    return {int(one["ring_id"]): str(one["engine"]) for one in listed}
