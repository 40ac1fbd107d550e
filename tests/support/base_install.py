"""Runs the command line as the base install has it: whatever isn't the standard library is missing.

python -m tests.support.base_install COMMAND ...
"""

import sys
from importlib.abc import MetaPathFinder
from typing import Any

OURS = {"batchscope", "tests", "vllm"}
"""What may be found. An engine may be there, too: the command must not import it."""


class Blocker(MetaPathFinder):
    """Says that foreign modules don't exist."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in OURS and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main() -> int:
    """The exit code of the command."""
    sys.meta_path.insert(0, Blocker())
    from batchscope.exporter.cli import main as command

    return command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
