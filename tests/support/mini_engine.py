"""A bundled engine in a process of its own, stepping until its stdin is closed.

    python -m tests.support.mini_engine [attach | bare | idle]

`attach` loads the adapter as an engine does at start, `bare` doesn't know us at all, `idle` has the
adapter and never steps. Prints one line when it runs.
"""

import random
import select
import sys
import time
from typing import Any

from tests.adapters.drivers import MiniDriver

PAUSE_S = 0.002


def told_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main(mode: str) -> None:
    """Serve a seeded trickle of requests; at the end print how many it finished."""
    driver, rng = MiniDriver(), random.Random(3)
    engine: Any = driver.engine()
    if mode != "bare":
        from batchscope.adapters import mini

        mini.attach(engine)
    print("running", flush=True)
    number = 0
    while not told_to_stop():
        if mode != "idle" and number % 3 == 0:
            driver.submit(engine, number, rng)
        if engine.has_work():
            engine.step()
        number += 1
        time.sleep(PAUSE_S)
    print(engine.totals.as_dict()["requests"]["finished"])


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["attach"]))
