"""A nursery of exporters to be killed: imports once, forks one for each line on its stdin.

    python -m tests.support.exporter_process FOLDER STORE

For each line it forks an exporter and prints `<pid> <seconds from open to running>`. An exporter
ends by itself when its ring is read, committed and retired.
"""

import os
import sys
import time
from pathlib import Path

from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.store import Store
from batchscope.schemas.ring import list_rings
from batchscope.schemas.slo import DEMO_SLO


def export(folder, store):
    """Run one exporter until the folder is empty."""
    began = time.monotonic()
    opened = Store.open(store)
    pipeline = Pipeline(folder, opened, options=Options(slo=DEMO_SLO, commit_s=0.05))
    pipeline.start()
    print(os.getpid(), time.monotonic() - began, flush=True)
    deadline = time.monotonic() + 60
    while list_rings(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    pipeline.stop()
    opened.close()


def main(folder, store):
    """Fork on demand."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            export(Path(folder), Path(store))
            os._exit(0)
        os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
