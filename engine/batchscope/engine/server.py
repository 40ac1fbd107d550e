"""An OpenAI-compatible server over an EngineLoop: completions and chats, streamed or whole.

A client that vanishes frees its pages at the next iteration, whether it streams or not. Overload is
429, a request that can never run 400, an engine that is ending 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from batchscope.engine.limits import RequestRejected
from batchscope.engine.loop import EngineLoop, Overloaded, Stopped
from batchscope.engine.protocol import Answer, BadRequest, Body, Chat, Completion, error, usage
from batchscope.engine.sequence import FinishReason
from batchscope.engine.text import Pieces, Tokenizer

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
ERRORS: dict[type[Exception], tuple[int, str]] = {
    BadRequest: (400, "invalid_request_error"),
    RequestRejected: (400, "invalid_request_error"),
    Overloaded: (429, "overloaded_error"),
    Stopped: (503, "unavailable_error"),
}


class UnknownModel(BadRequest):
    """Another model than ours is asked for."""


def make_app(loop: EngineLoop, *, model: str, tokenizer: Tokenizer | None) -> FastAPI:
    """The application. The loop is started and stopped with it."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        loop.start()
        yield
        await asyncio.to_thread(loop.stop)

    app = FastAPI(title="batchscope engine", lifespan=lifespan)
    _refusals(app)

    @app.get("/health")
    async def health() -> Response:
        return Response(status_code=200 if loop.alive else 503)

    card = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "local"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != model:
            raise UnknownModel(f"the model here is {model}")
        return card

    @app.post("/v1/completions")
    async def completions(body: Completion, request: Request) -> Response:
        talk = Talk(loop, body, request, model=model, tokenizer=tokenizer)
        return await talk.respond("text_completion")

    @app.post("/v1/chat/completions")
    async def chat(body: Chat, request: Request) -> Response:
        talk = Talk(loop, body, request, model=model, tokenizer=tokenizer)
        return await talk.respond("chat.completion")

    return app


def _refusals(app: FastAPI) -> None:
    """Every error in the shape that OpenAI's clients read."""

    async def refused(_request: Request, why: Exception) -> JSONResponse:
        status, kind = ERRORS.get(type(why), (400, "invalid_request_error"))
        if isinstance(why, UnknownModel):
            status = 404
        headers = {"Retry-After": "1"} if status in (429, 503) else None
        return JSONResponse(error(str(why), kind), status, headers)

    async def malformed(_request: Request, why: Any) -> JSONResponse:
        return JSONResponse(error(first_fault(why), "invalid_request_error"), 400)

    async def nowhere(_request: Request, why: Any) -> JSONResponse:
        kind = "invalid_request_error"
        return JSONResponse(error(str(why.detail), kind), why.status_code, why.headers)

    for known in (*ERRORS, UnknownModel):
        app.add_exception_handler(known, refused)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, nowhere)


class Talk:
    """One request on its way: its body, what it hears from the engine, its answer."""

    def __init__(
        self,
        loop: EngineLoop,
        body: Body,
        request: Request,
        *,
        model: str,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._loop, self._body, self._request = loop, body, request
        self._model, self._tokenizer = model, tokenizer
        self._id = request_id(request.headers)
        self._heard: asyncio.Queue[int | FinishReason | None] = asyncio.Queue()
        self._prompt_tokens = 0
        self._ids: list[int] = []

    async def respond(self, kind: Any) -> Response:
        """Submit, then stream or collect. Raises what ERRORS lists."""
        self._submit()
        answer = Answer(kind, request_id=self._id, model=self._model, created=int(time.time()))
        headers = {"X-Request-Id": self._id}
        if self._body.stream:
            lines = self._lines(answer)
            return StreamingResponse(lines, media_type="text/event-stream", headers=headers)
        return await self._whole(answer, headers)

    def _submit(self) -> None:
        body, here = self._body, asyncio.get_running_loop()
        body.check()
        if body.model not in (None, self._model):
            raise UnknownModel(f"the model here is {self._model}")
        prompt = body.prompt_ids(self._tokenizer)

        def hear(item: int | FinishReason) -> None:
            with contextlib.suppress(RuntimeError):  # the server is gone: nobody listens
                here.call_soon_threadsafe(self._heard.put_nowait, item)

        self._prompt_tokens = len(prompt)
        self._loop.submit(
            self._id,
            prompt,
            body.limit(),
            on_token=hear,
            on_end=hear,
            ignore_eos=body.ignore_eos,
            priority=body.priority,
            tenant=body.user,
            trace_context=trace_context(self._request.headers),
        )

    async def _pieces(self) -> AsyncGenerator[tuple[str, list[int], FinishReason | None], None]:
        """(text, its new ids, None), ..., and last (rest, [], why it ended).

        Ends without a last one when the client has gone; however it ends, the engine is told.
        """
        pieces, watch = Pieces(self._tokenizer), asyncio.create_task(self._watch())
        try:
            while (item := await self._heard.get()) is not None and not watch.done():
                if isinstance(item, FinishReason):
                    yield pieces.rest(), [], item
                    return
                self._ids.append(item)
                yield pieces.push(item), [item], None
        finally:
            watch.cancel()
            self._loop.abort(self._id)

    async def _watch(self) -> None:
        """Ends when the client has gone, and wakes who waits for tokens then."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._heard.put_nowait(None)

    async def _lines(self, answer: Answer) -> AsyncIterator[str]:
        """Server-sent events."""
        opens = True
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for text, ids, end in pieces:
                if end is FinishReason.ERROR:
                    yield event(error("the iteration failed", "server_error"))
                    break
                reason = None if end is None else end.value
                yield event(answer.chunk(text, reason, ids=self._shown(ids), opens=opens))
                opens = False
        if self._body.includes_usage:
            yield event(answer.usage_chunk(usage(self._prompt_tokens, len(self._ids))))
        yield "data: [DONE]\n\n"

    async def _whole(self, answer: Answer, headers: dict[str, str]) -> Response:
        texts, end = [], None
        async with contextlib.aclosing(self._pieces()) as pieces:
            async for text, _, reason in pieces:
                texts.append(text)
                end = reason
        if end is None:  # nobody is there to read this
            return Response(status_code=499)
        if end is FinishReason.ERROR:
            return JSONResponse(error("the iteration failed", "server_error"), 500, headers)
        told = usage(self._prompt_tokens, len(self._ids))
        ids = self._shown(self._ids)
        return JSONResponse(
            answer.whole("".join(texts), end.value, ids=ids, usage=told), headers=headers
        )

    def _shown(self, ids: list[int]) -> list[int] | None:
        return ids if self._body.return_token_ids else None


def event(content: Mapping[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"


def first_fault(why: RequestValidationError) -> str:
    """What is wrong with a body, as one line: where, and what was expected there."""
    fault = why.errors()[0]
    where = ".".join(str(step) for step in fault["loc"][1:])
    return f"{where}: {fault['msg']}" if where else str(fault["msg"])


def request_id(headers: Mapping[str, str]) -> str:
    """The client's own X-Request-Id where it has a usable one."""
    told = headers.get("x-request-id", "")
    return told if REQUEST_ID.fullmatch(told) else uuid4().hex


def trace_context(headers: Mapping[str, str]) -> tuple[bytes, bytes] | None:
    """(trace id, span id) of a W3C traceparent header."""
    match = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return (bytes.fromhex(match[1]), bytes.fromhex(match[2])) if match else None
