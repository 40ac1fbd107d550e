"""`batchscope detach`: stop recording in running engines. They stay dormant, attach wakes them."""

from __future__ import annotations

import argparse

from batchscope.exporter.cli import asking, attach, engines
from batchscope.schemas.ring import LEVEL_OFF

SAYS = {
    "detached": "detached, dormant again",
    "unchanged": "was dormant already",
    "asked": "asked; it stops with its next iteration, none came in {seconds:g} s",
    "growing": "asked while it was waking; it stops with its next iteration",
    "gone": "it left meanwhile",
    "refused": "can't be told: {why}",
}
SAYS_FOR_GOOD = {**SAYS, "detached": "its own functions are back; a restart loads batchscope again"}


def add(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.add_argument(
        "engine", nargs="*", metavar="ENGINE", help="label, model, pid, or beginning of the ring"
    )
    parser.add_argument("--all", action="store_true", help="every engine of the folder")
    parser.add_argument(
        "--for-good", action="store_true", help="take the hooks off until the engine restarts"
    )
    attach.add_common(parser)


def run(args: argparse.Namespace) -> int:
    """0 when nobody refused or died, 1 otherwise."""
    folder = engines.folder_of(args)
    attach.must_name(args)
    found = attach.targets(folder, args)
    if args.for_good:
        asked = asking.ask_to_leave(folder, found)
        asking.await_answers(folder, asked, answer=asking.has_left, seconds=args.wait)
        return attach.report(asked, args, SAYS_FOR_GOOD)
    asked = asking.ask_level(folder, found, LEVEL_OFF)
    asking.await_answers(folder, asked, answer=asking.is_dormant, seconds=args.wait)
    return attach.report(asked, args, SAYS)
