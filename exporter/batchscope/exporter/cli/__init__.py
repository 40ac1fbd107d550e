"""The command line: a table of commands, each in a module that is imported only when it runs.

Exit codes: 0 done, 1 failed at run time, 2 a mistake in flags, files or values.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from batchscope.exporter.errors import BatchscopeError, ConfigError


@dataclass(frozen=True)
class Command:
    """One subcommand; its module has `add(parser)` and `run(args) -> int`.

    extra: what pip must add for it; "" where the base install suffices.
    """

    name: str
    module: str
    help: str
    extra: str


COMMANDS: tuple[Command, ...] = (
    Command("demo", "demo", "an engine under traffic, exporter and dashboard, in one go", "all"),
    Command("serve", "serve", "follow engines, store, and answer", "exporter"),
    Command("dashboard", "dashboard", "the pages, in a browser", "dashboard"),
    Command("run", "run", "start an engine with the adapter on", ""),
    Command("attach", "attach", "switch recording on in running engines, or list them", ""),
    Command("detach", "detach", "switch recording off in running engines", ""),
    Command("doctor", "doctor", "what is there, what works, and the fix for what doesn't", ""),
    Command("replay", "replay", "offer a trace or a law to a server and measure", "workload"),
    Command("export", "export", "what was recorded, as a trace that replay takes", "workload"),
    Command("request", "request", "the life of one request, by its id", ""),
    Command("snapshot", "snapshot", "freeze the last minute of a ring, or show a frozen one", ""),
)


class Parser(argparse.ArgumentParser):
    """argparse that says one sentence and ends with 2."""

    def error(self, message: str) -> NoReturn:
        """One line instead of a page of usage."""
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; no traceback for a user's mistake."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parsed(words)
        return int(args.run(args))
    except ConfigError as error:
        return _fail(str(error), 2)
    except BatchscopeError as error:
        return _fail(str(error), 1)
    except ModuleNotFoundError as error:
        if (error.name or "batchscope").startswith("batchscope"):
            raise
        return _fail(_cure(words, error.name or ""), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has seen enough; nothing may be flushed at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser(words: Sequence[str]) -> Parser:
    """The parser; only the named command's module is imported."""
    parser = Parser(prog="batchscope", description="See inside batches.", allow_abbrev=False)
    parser.add_argument(
        "--version", action="version", version=f"batchscope {version('batchscope')}"
    )
    chosen = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        sub = chosen.add_parser(command.name, help=command.help, allow_abbrev=False)
        if command.name == _named(words):
            module = import_module(f"{__name__}.{command.module}")
            module.add(sub)
            sub.set_defaults(run=module.run, refuse=sub.error)
    return parser


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command's arguments; what it doesn't know is refused with its own help, not ours."""
    args, unknown = _parser(words).parse_known_args(words)
    if unknown:
        args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _named(words: Sequence[str]) -> str | None:
    """The command: the first word that is no flag; what follows it may be another program's."""
    return next((word for word in words if not word.startswith("-")), None)


def _cure(words: Sequence[str], missing: str) -> str:
    command = next(command for command in COMMANDS if command.name == _named(words))
    extra = command.extra or "all"
    return f"{command.name} needs {missing}: pip install 'batchscope[{extra}]'"


def _fail(sentence: str, code: int) -> int:
    print(f"batchscope: {sentence}", file=sys.stderr)
    return code
