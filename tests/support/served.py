"""A real API server on loopback, over a store of its own, for tests that ask over HTTP."""

import threading
import time
from typing import Any

import httpx
import pyarrow as pa
import uvicorn

from batchscope.exporter.api import Service, build
from batchscope.exporter.pipeline import Options, Pipeline
from batchscope.exporter.store import Commit, Store
from batchscope.schemas.request_keys import make_salt, request_key
from batchscope.schemas.slo import Slo

RING = 2**63 + 5


class Served:
    """A real server on loopback over a store with one request in it."""

    def __init__(self, folder: Any, *, token: Any = None) -> None:
        self.store = Store.open(folder / "s.duckdb")
        self.rings = folder / "rings"
        options = Options(slo=Slo.parse("ttft<=1s"), commit_s=0.05)
        self.pipeline = Pipeline(self.rings, self.store, options=options)
        self.service = Service(self.store, self.pipeline)
        config = uvicorn.Config(build(self.service, token=token), port=0, log_level="error")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Any:
        self.store.commit(Commit(appended={"requests": one_request(self.rings)}))
        self.pipeline.start()
        self._thread.start()
        until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=15)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.service.closing.set()
        self._server.should_exit = True
        self._thread.join(10)
        self.pipeline.stop()
        self.store.close()


def one_request(rings: Any) -> Any:
    (rings / "ctl").mkdir(parents=True)
    key = f"{request_key('req-42', make_salt(rings)):016x}"
    row: dict[str, Any] = dict.fromkeys(
        ("prefill_tokens", "decode_tokens", "output_tokens", "cached_on_resume_tokens"), 7
    )
    row |= dict.fromkeys(("recomputed_tokens", "steps", "preemptions", "lost_tokens"), 0)
    row |= {"ring_id": RING, "serial": 1, "request_key": key, "unix_ns": 5, "deferrals": 0}
    columns = {name: pa.array([value]) for name, value in row.items() if name != "ring_id"}
    return pa.table(
        {"ring_id": pa.array([RING], pa.uint64()), **columns, "broken": pa.array([False])}
    )


def until(true: Any, seconds: Any = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)
