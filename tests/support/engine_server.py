"""The bundled engine behind its real server on loopback, in a thread of this process."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from batchscope.engine.config import EngineConfig
from batchscope.engine.cost import CostRunner, CostTable
from batchscope.engine.engine import Engine
from batchscope.engine.loop import EngineLoop
from batchscope.engine.server import make_app
from batchscope.engine.text import Bytes

QUICK = CostTable("quick", fixed_ns=200_000, floor_ns=0, per_token_ns=0, per_kv_token_ns=0)


@contextmanager
def serving(
    *,
    table: CostTable = QUICK,
    max_waiting: int = 256,
    attach: Callable[[Engine], Any] | None = None,
    **config: Any,
) -> Iterator[tuple[str, Engine]]:
    """(URL, engine). No page may be in use when it ends."""
    engine = Engine(EngineConfig(runner="cost", **config), runner=CostRunner(table))
    if attach is not None:
        attach(engine)
    app = make_app(EngineLoop(engine, max_waiting=max_waiting), model="mini", tokenizer=Bytes())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", engine
    finally:
        server.should_exit = True
        thread.join(20)
    assert engine.scheduler.blocks.used == 0, "pages are left"
