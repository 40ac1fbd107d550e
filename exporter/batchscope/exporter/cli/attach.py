"""`batchscope attach`: switch recording on in running engines, which loaded batchscope dormant."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from batchscope.exporter.cli import asking, engines, processes
from batchscope.exporter.cli.asking import Asked
from batchscope.exporter.errors import ConfigError
from batchscope.schemas.ring import Resident, roster

DEFAULT_WAIT_S = 10.0
COLUMNS = ("ring", "engine", "kind", "version", "model_name", "role", "dp_rank", "pid", "state")
SAYS = {
    "attached": "attached, records {level}; `batchscope serve` reads it",
    "unchanged": "was attached already, records {level}",
    "asked": "asked, and nothing recorded in {seconds:g} s: it begins with its next iteration",
    "growing": "waking: its ring grows with each iteration, sixteen of them",
    "gone": "it left instead; its own log says why (no memory for the ring?)",
    "refused": "can't be told: {why}",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "engine", nargs="*", metavar="ENGINE", help="label, model, pid, or beginning of the ring"
    )
    parser.add_argument("--all", action="store_true", help="every engine of the folder")
    parser.add_argument("--list", action="store_true", help="show the engines, change nothing")
    parser.add_argument(
        "--level", choices=("iterations", "members"), default="members", help="detail (members)"
    )
    parser.add_argument(
        "--inject",
        action="store_true",
        help="enter a process without batchscope, below Python 3.14, as a debugger does",
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """What attach and detach share."""
    parser.add_argument(
        "--wait", type=float, default=DEFAULT_WAIT_S, metavar="S", help="seconds for an answer (10)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    engines.add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """0 when nobody refused or left, 1 otherwise."""
    folder = engines.folder_of(args)
    if args.list:
        return show(roster(folder), folder, as_json=args.json)
    must_name(args)
    try:
        found = targets(folder, args)
    except (engines.NobodyThere, ConfigError) as nobody:
        found = _entered(folder, args, nobody)
    asked = asking.ask_level(folder, found, engines.LEVELS[args.level])
    asking.await_answers(folder, asked, answer=asking.is_attached, seconds=args.wait)
    return report(asked, args, SAYS)


def must_name(args: argparse.Namespace) -> None:
    """Either names or all; ConfigError for neither and for both."""
    if bool(args.engine) == args.all:
        raise ConfigError("name an engine (label, model, pid, ring), or say --all")


def targets(folder: Path, args: argparse.Namespace) -> list[Resident]:
    """The living engines that are meant; ConfigError, NobodyThere when there are none."""
    found = engines.living(folder)
    return found if args.all else engines.chosen(found, args.engine)


def report(asked: Sequence[Asked], args: argparse.Namespace, says: dict[str, str]) -> int:
    """One line per engine, or JSON; 1 when one refused or left."""
    if args.json:
        told = [engines.facts(one.resident) | {"outcome": one.outcome} for one in asked]
        print(json.dumps({"engines": told}))
    else:
        level = getattr(args, "level", "")
        for one in asked:
            growing = one.outcome == "asked" and one.resident.growing
            said = says["growing" if growing else one.outcome]
            said = said.format(level=level, seconds=args.wait, why=one.why)
            print(f"{engines.name(one.resident)}: {said}")
    return int(any(one.outcome in ("gone", "refused") for one in asked))


def show(residents: Sequence[Resident], folder: Path, *, as_json: bool) -> int:
    """A table of who is there, the dead included; 1 when nobody is."""
    rows = [engines.facts(one) for one in residents]
    if as_json:
        print(json.dumps({"dir": str(folder), "engines": rows}))
    elif not rows:
        print(f"no engine in {folder}{engines.elsewhere(folder)}: {engines.HOW_TO_LOAD}")
    else:
        cells = [[_cell(row, name) for name in COLUMNS] for row in rows]
        _table([[name.removesuffix("_name") for name in COLUMNS], *cells])
    return 0 if rows else 1


def _cell(row: dict[str, object], name: str) -> str:
    value = row[name]
    if name == "ring":
        return str(value)[:8]
    if name == "state" and value == "attached":
        return f"attached, {row['level'] or 'level unknown'}"
    return "-" if value is None else str(value)


def _table(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _entered(folder: Path, args: argparse.Namespace, nobody: Exception) -> list[Resident]:
    """Engines of a process that has no batchscope yet, where it can be put there."""
    word = args.engine[0] if len(args.engine) == 1 else ""
    if not word.isdigit() or not processes.exists(int(word)):
        raise nobody
    from batchscope.exporter.cli import entering

    return entering.enter(int(word), folder, args)
