"""`batchscope doctor`: what is there, what works, and the fix for what doesn't. One line each."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable

from batchscope.exporter.cli import checks, engines, exporter_client, installed, places
from batchscope.exporter.cli.findings import Finding, Scene
from batchscope.schemas.ring import ring_folder

CHECKS: tuple[Callable[[Scene], Iterable[Finding]], ...] = (
    checks.environment,
    installed.engines,
    places.folder,
    places.residents,
    checks.exporter,
    checks.cores,
    checks.clock,
    checks.request_ids,
)


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument("--json", action="store_true", help="one JSON object")
    exporter_client.add_exporter(parser)
    engines.add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """1 when something must be fixed."""
    folder = args.dir or ring_folder(os.environ)
    scene = Scene(env=os.environ, folder=folder, url=exporter_client.url_of(args))
    found = [finding for check in CHECKS for finding in check(scene)]
    broken = any(finding.status == "fix" for finding in found)
    if args.json:
        print(json.dumps({"ok": not broken, "checks": [vars(finding) for finding in found]}))
    else:
        print("\n".join(_line(finding) for finding in found))
    return int(broken)


def _line(finding: Finding) -> str:
    cure = f" -> {finding.fix}" if finding.fix else ""
    return f"{finding.status:5} {finding.about:12} {finding.says}{cure}"
