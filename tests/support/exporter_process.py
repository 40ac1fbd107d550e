"""A nursery of exporters to be killed: imports once, forks one for each line on its stdin.

    python -m tests.support.exporter_process FOLDER STORE

For each line it forks an exporter and prints `<pid> <CPU seconds until it runs>`, and `ended`
when that is dead.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.store import Store
from batchscope.schemas.slo import DEMO_SLO

QUICK: dict[str, Any] = {"slo": DEMO_SLO, "commit_s": 0.01, "rest_s": (0.01, 0.02), "look_s": 0.05}
"""Many rounds and commits in the little time it has."""


def export(folder: Any, store: Any) -> None:
    """Run one exporter until it is killed, or for a minute."""
    opened = Store.open(store)
    pipeline = Pipeline(folder, opened, options=Options(**QUICK))
    pipeline.start()
    print(os.getpid(), time.process_time(), flush=True)
    time.sleep(60)
    pipeline.stop()
    opened.close()


def main(folder: Any, store: Any) -> None:
    """Fork on demand."""
    pa.array([1])  # imports pandas where it is installed: once here, not in each child
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            export(Path(folder), Path(store))
            os._exit(0)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
