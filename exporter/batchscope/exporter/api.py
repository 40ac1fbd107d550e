"""HTTP: named queries, live state, metrics, marks. The one module that knows fastapi.

Handlers are plain functions run on worker threads; only /live is a coroutine. Nothing from outside
reaches the store but a query's name and typed parameters.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from batchscope.exporter import answers, index
from batchscope.exporter.client_runs import (
    NewClientRequests,
    NewClientRun,
    request_rows,
    run_row,
)
from batchscope.exporter.errors import BatchscopeError, QueryError, StoreError
from batchscope.exporter.guards import PROBLEM_TYPE, Guard, problem
from batchscope.exporter.pipeline import Pipeline
from batchscope.exporter.queries import registry
from batchscope.exporter.store import Store
from batchscope.schemas.request_keys import read_salt, request_key
from batchscope.schemas.slo import Slo, SloError

MAX_LIVE_CLIENTS = 16
MAX_QUERIES_AT_ONCE = 4
QUEUE_S = 5.0
"""How long a query may wait for its turn before it is told to come back."""

_STATUS: tuple[tuple[type[BatchscopeError], int], ...] = (
    (QueryError, 422),
    (StoreError, 503),
    (BatchscopeError, 500),
)


class Metrics(Protocol):
    """What renders /metrics."""

    def render(self, accept: str, accept_encoding: str) -> tuple[bytes, str, str | None]:
        """(body, content type, content encoding) for a scraper's headers."""
        ...


@dataclass
class Service:
    """What the API answers from. pipeline None: only a store, after the fact."""

    store: Store
    pipeline: Pipeline | None = None
    metrics: Metrics | None = None
    wall: Callable[[], int] = time.time_ns
    closing: threading.Event = field(default_factory=threading.Event)
    turns: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(MAX_QUERIES_AT_ONCE)
    )
    live_clients: int = 0

    def query(self, name: str, params: dict[str, str]) -> Any:
        """An Arrow table; queries beyond MAX_QUERIES_AT_ONCE wait, and give up after QUEUE_S."""
        if not self.turns.acquire(timeout=QUEUE_S):
            raise HTTPException(429, "too many queries at once; try again in a moment")
        try:
            return self.store.query(name, params)
        finally:
            self.turns.release()

    def running(self) -> Pipeline:
        """The pipeline; 409 without one."""
        if self.pipeline is None:
            raise HTTPException(409, "this exporter only reads a store")
        return self.pipeline


class NewMark(BaseModel):
    """A line on every chart: a deploy, a change, a remark."""

    text: str = Field(min_length=1, max_length=200)
    engine: str | None = Field(default=None, max_length=200)


class NewSlo(BaseModel):
    """Targets as text, e.g. ttft<=2s,tbt_p99<=200ms."""

    targets: str = Field(min_length=1, max_length=500)
    name: str = Field(default="default", pattern=r"^[a-z][a-z0-9_-]{0,31}$")


def build(service: Service, *, token: str | None = None) -> Guard:
    """The ASGI application."""
    app = FastAPI(title="batchscope", version=version("batchscope"), docs_url=None, redoc_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    _handle_errors(app)
    _add_index(app)
    _add_probes(app, service)
    _add_queries(app, service)
    _add_live(app, service)
    _add_writes(app, service)
    _add_client_runs(app, service)
    _describe_queries(app)
    return Guard(app, token)


def _add_index(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def root() -> HTMLResponse:
        """What is here."""
        return HTMLResponse(index.page())

    @app.get("/docs", include_in_schema=False)
    def docs() -> RedirectResponse:
        """No page of FastAPI's: its scripts come from elsewhere."""
        return RedirectResponse("/")


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", responses=_PROBLEM)
    def readyz() -> Response:
        """Whether the store takes rows; 503 says why it doesn't."""
        why = service.pipeline.store_error if service.pipeline else None
        return JSONResponse({"status": "ok"}) if why is None else _problem(503, why)

    @app.get("/metrics", responses=_PROBLEM)
    def metrics(request: Request) -> Response:
        """Prometheus exposition, classic or OpenMetrics by Accept."""
        if service.metrics is None:
            raise HTTPException(404, "this exporter has no metrics")
        asked = request.headers
        body, kind, encoding = service.metrics.render(
            asked.get("accept", ""), asked.get("accept-encoding", "")
        )
        headers = {"content-type": kind, **({"content-encoding": encoding} if encoding else {})}
        return Response(body, headers=headers)


def _add_queries(app: FastAPI, service: Service) -> None:
    @app.get("/api/v1/queries")
    def queries() -> list[dict[str, Any]]:
        """Every named question and its parameters."""
        return [answers.describe(query) for query in registry().values()]

    @app.get("/api/v1/query/{name}", include_in_schema=False)
    def query(name: str, request: Request) -> Response:
        """The answer to a named question, as JSON columns or an Arrow stream."""
        if name not in registry():
            raise HTTPException(404, f"no query is called {name[:80]!r}; see /api/v1/queries")
        table = service.query(name, dict(request.query_params))
        body, kind = answers.encode(table, request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    @app.get("/api/v1/engines", responses=_PROBLEM)
    def engines() -> dict[str, Any]:
        """Every engine that was ever seen, and the rings that can't be read, with the reason."""
        refused = service.pipeline.refused if service.pipeline else {}
        return {
            "engines": answers.rows(service.query("engines", {})),
            "refused": [{"ring": p.name, "reason": why} for p, why in list(refused.items())],
        }

    @app.get("/api/v1/request/{key}", responses=_PROBLEM)
    def request(key: str) -> dict[str, Any]:
        """All that is known of a request, by the id a client complains about or by its key."""
        found = answers.rows(service.query("request", {"keys": _keys(service, key)}))
        if not found:
            raise HTTPException(404, f"no request with id or key {key[:80]!r} is in the store")
        return {
            "requests": [one | _story(service, one) for one in found],
            "handovers": _handovers(service, found),
        }


def _add_live(app: FastAPI, service: Service) -> None:
    @app.get("/api/v1/live", responses=_PROBLEM)
    async def live(
        interval_ms: Annotated[int, Query(ge=250, le=60_000)] = 1_000,
        events: Annotated[int, Query(ge=1, le=100_000)] = 100_000,
    ) -> StreamingResponse:
        """Server-sent events: every engine's gauges and counters, once per interval."""
        service.running()
        if service.live_clients >= MAX_LIVE_CLIENTS:
            raise HTTPException(429, f"at most {MAX_LIVE_CLIENTS} clients may follow live")
        stream = _events(service, interval_s=interval_ms / 1e3, events=events)
        return StreamingResponse(stream, media_type="text/event-stream")


async def _events(service: Service, *, interval_s: float, events: int) -> AsyncIterator[bytes]:
    service.live_clients += 1
    try:
        for left in range(events, 0, -1):
            seen = answers.live(service.running().engines(), unix_ns=service.wall())
            yield b"data: " + json.dumps(seen).encode() + b"\n\n"
            if left == 1 or await _pause(service.closing, interval_s):
                return
    finally:
        service.live_clients -= 1


async def _pause(closing: threading.Event, seconds: float) -> bool:
    """Sleep in slices, so that a shutdown isn't held up by a slow client's interval."""
    end = time.monotonic() + seconds
    while not closing.is_set() and (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 0.25))
    return closing.is_set()


def _add_writes(app: FastAPI, service: Service) -> None:
    @app.post("/api/v1/marks", status_code=201, responses=_PROBLEM)
    def mark(new: NewMark) -> dict[str, Any]:
        """Put a line on every chart."""
        _storable(new.text, new.engine or "")
        return service.running().mark(new.text, engine=new.engine)

    @app.get("/api/v1/slo", responses=_PROBLEM)
    def slo() -> dict[str, Any]:
        """The SLO in force; 404 when there is none."""
        current = service.running().slo
        if current is None:
            raise HTTPException(404, "no SLO is in force; PUT one here, or start with --slo")
        return _slo(current)

    @app.put("/api/v1/slo", responses=_PROBLEM)
    def judge(new: NewSlo) -> dict[str, Any]:
        """Judge requests by another SLO from now on."""
        try:
            parsed = Slo.parse(new.targets, name=new.name)
        except SloError as error:
            raise HTTPException(422, str(error)) from None
        return _slo(service.running().judge_by(parsed))


def _add_client_runs(app: FastAPI, service: Service) -> None:
    @app.post("/api/v1/client-runs", status_code=201, responses=_PROBLEM)
    def client_run(new: NewClientRun) -> dict[str, Any]:
        """Hand in a replay as its client saw it; its requests follow."""
        service.running().post("client_runs", [row := run_row(new)])
        return row

    @app.post("/api/v1/client-requests", status_code=201, responses=_PROBLEM)
    def client_requests(new: NewClientRequests) -> dict[str, Any]:
        """Hand in requests of a client run; the queries client_requests and client_latency show
        them beside what the engine's side recorded.
        """
        rows = request_rows(new, salt=_salt(service))
        service.running().post("client_requests", rows)
        return {"run": new.run, "requests": len(rows)}


def _salt(service: Service) -> bytes | None:
    return read_salt(service.pipeline.folder) if service.pipeline else None


def _keys(service: Service, given: str) -> str:
    """The id itself and, where the folder's salt is known, its hash, as the query wants them."""
    salt = _salt(service)
    if "," in given or len(given) > 256:
        raise HTTPException(404, "no request has such an id")
    hashed = f",{request_key(given, salt):016x}" if salt else ""
    return given + hashed


def _story(service: Service, one: dict[str, Any]) -> dict[str, Any]:
    """What happened to a request: waits, runs of equal steps, gaps beyond one interval,
    preemptions, what its front end handed on, hops of its KV.
    """
    which = {"ring_id": str(one["ring_id"]), "serial": str(one["serial"])}
    names = ("waits", "runs", "gaps", "preemptions", "deliveries", "transfers")
    return {n: answers.rows(service.query(f"request_{n}", which)) for n in names}


def _handovers(service: Service, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How those of them that were split went from one engine to the other."""
    keys = {key for one in found if (key := one["external_key"] or one["request_key"])}
    which = {"keys": ",".join(sorted(keys))}
    return answers.rows(service.query("request_handovers", which)) if keys else []


def _slo(current: Slo) -> dict[str, Any]:
    named = {"name": current.name, "version": current.version, "targets": str(current)}
    return named | {"targets_ns": dict(current.targets)}


def _storable(*texts: str) -> None:
    if any("\0" in text or not _is_utf8(text) for text in texts):
        raise HTTPException(422, "text must be UTF-8 without NUL")


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(BatchscopeError)
    def ours(_: Request, error: BatchscopeError) -> Response:
        status = next(code for kind, code in _STATUS if isinstance(error, kind))
        return _problem(status, str(error))

    @app.exception_handler(HTTPException)
    def refused(_: Request, error: HTTPException) -> Response:
        return _problem(error.status_code, str(error.detail), headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _problem(422, f"{where}: {first['msg']}")

    @app.exception_handler(Exception)
    def fault(_: Request, error: Exception) -> Response:
        return _problem(500, f"{type(error).__name__}; the exporter's log has more")


def _problem(status: int, detail: str, *, headers: Any = None) -> Response:
    return Response(problem(status, detail), status, headers, media_type=PROBLEM_TYPE)


_PROBLEM: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem (RFC 9457)",
        "content": {PROBLEM_TYPE: {"schema": {"type": "object", "required": ["status", "detail"]}}},
    }
}


def _describe_queries(app: FastAPI) -> None:
    """Add one path per named query to the OpenAPI, each with its own parameters."""
    inherited = app.openapi

    def openapi() -> dict[str, Any]:
        document = inherited()
        responses = document.setdefault("components", {}).setdefault("responses", {})
        responses["Problem"] = _PROBLEM["default"]
        for query in registry().values():
            path = f"/api/v1/query/{query.name}"
            document["paths"][path] = answers.openapi_path(query)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
