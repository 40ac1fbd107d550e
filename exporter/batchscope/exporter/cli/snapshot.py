"""`batchscope snapshot`: freeze what a ring holds now, or show what a frozen one says."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from batchscope.exporter.cli import engines, frozen, spoken
from batchscope.exporter.errors import BatchscopeError, ConfigError
from batchscope.schemas.ring import Resident, RingError, roster
from batchscope.schemas.ring.snapshot import freeze, load, save

DEFAULT_S = 60.0


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "engine", nargs="*", metavar="ENGINE", help="label, model, pid or ring; none: the only one"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write it")
    parser.add_argument(
        "--seconds", type=float, default=DEFAULT_S, metavar="S", help="how much at least (60)"
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="summarise a snapshot")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    engines.add_folder(parser)


def run(args: argparse.Namespace) -> int:
    """Write a file per engine, or print a summary."""
    if args.show:
        return _show(args.show, as_json=args.json)
    found = _recorded(engines.folder_of(args), args.engine)
    if args.output and len(found) > 1:
        raise ConfigError(f"{len(found)} engines are meant: leave --output out, or name one")
    written = [_write(one, args.output, args.seconds) for one in found]
    if args.json:
        print(json.dumps({"files": [str(path) for path, _ in written]}))
    else:
        for path, size in written:
            print(f"{path} ({spoken.size(size)}): batchscope snapshot --show {path}")
    return 0


def _recorded(folder: Path, words: Sequence[str]) -> list[Resident]:
    """Engines with a ring, the dead included; without words the only living one. A front end is
    only meant by its ring or where there is nothing else: batches are in the engine's.
    """
    there = [one for one in roster(folder) if one.ring is not None]
    if not there:
        raise engines.NobodyThere(f"no engine records in {folder}{engines.elsewhere(folder)}")
    if words:
        return _cores(engines.chosen(there, words))
    alive = _cores([one for one in there if one.alive] or there)
    if len(alive) > 1:
        raise ConfigError(f"which one? {', '.join(map(engines.name, alive))}")
    return alive


def _cores(found: list[Resident]) -> list[Resident]:
    return [one for one in found if not engines.is_front_end(one)] or found


def _write(one: Resident, output: Path | None, seconds: float) -> tuple[Path, int]:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    label = "".join(c if c.isalnum() else "-" for c in str(one.about.get("engine", "engine")))
    target = output or Path(f"batchscope-{label}-{one.ring_uuid[:8]}-{stamp}.zip")
    assert one.ring is not None
    try:
        save(freeze(one.ring, seconds=seconds), target)
    except RingError as error:
        raise BatchscopeError(str(error)) from None
    except OSError as error:
        raise BatchscopeError(f"can't write {target}: {error.strerror or error}") from None
    return target, target.stat().st_size


def _show(source: Path, *, as_json: bool) -> int:
    if not source.is_file():
        raise ConfigError(f"there is no file {source}")
    try:
        with TemporaryDirectory(prefix="batchscope-") as folder:
            seen = frozen.summary(*load(source, Path(folder)))
    except RingError as error:
        raise ConfigError(str(error)) from None
    print(json.dumps(seen) if as_json else "\n".join(frozen.lines(seen)))
    return 0
