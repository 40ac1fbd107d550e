"""What clients of the OpenAI API send and get, as data: checked bodies in, JSON objects out.

Used by server.py. Sampling is greedy, whatever a client's temperature says; what would change the
answer and isn't done (stop strings, several choices, log probabilities, tools) is refused.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from batchscope.engine.text import Tokenizer


class BadRequest(ValueError):  # noqa: N818
    """A body that can't be served; the text is for the client."""


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool = False


class Body(BaseModel):
    """What completions and chats have in common."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    priority: int = 0
    user: str | None = None
    n: int = 1
    stop: Any = None
    logprobs: Any = None
    tools: Any = None
    response_format: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise BadRequest for what is asked and would not be done."""
        shape = self.response_format or {}
        asked = {name: bool(getattr(self, name)) for name in ("stop", "logprobs", "tools")}
        asked |= {"n": self.n != 1, "response_format": shape.get("type", "text") != "text"}
        for name, is_asked in asked.items():
            if is_asked:
                raise BadRequest(f"{name} is not supported by this engine")

    def limit(self) -> int:
        """Most tokens to generate."""
        return self.max_tokens or 16

    def prompt_ids(self, tokenizer: Tokenizer | None) -> list[int]:
        """The prompt as token ids. Raises BadRequest."""
        raise NotImplementedError

    @property
    def includes_usage(self) -> bool:
        """Whether the stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class Completion(Body):
    """POST /v1/completions. One prompt: a text or token ids, alone or in a list."""

    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool = False

    def prompt_ids(self, tokenizer: Tokenizer | None) -> list[int]:
        """The one prompt."""
        if self.echo:
            raise BadRequest("echo is not supported by this engine")
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) != 1:
                raise BadRequest("one prompt a request")
            prompt = prompt[0]
        return _encoded(prompt, tokenizer) if isinstance(prompt, str) else list(prompt)


class Text(BaseModel):
    """A part of a turn; images and sounds are no texts and are refused."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation: a text, or its parts as load generators send them."""

    role: str
    content: str | list[Text]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Chat(Body):
    """POST /v1/chat/completions. Turns are set as plain text: chat templates are not run."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def limit(self) -> int:
        """Most tokens to generate, under either name."""
        return self.max_completion_tokens or super().limit()

    def prompt_ids(self, tokenizer: Tokenizer | None) -> list[int]:
        """The turns and the beginning of the next."""
        turns = [f"{turn.role}: {turn.text}\n" for turn in self.messages]
        return _encoded("".join([*turns, "assistant:"]), tokenizer)


def _encoded(text: str, tokenizer: Tokenizer | None) -> list[int]:
    if tokenizer is None:
        raise BadRequest("this model has no tokenizer here: send token ids")
    return tokenizer.encode(text)


Kind = Literal["text_completion", "chat.completion"]


class Answer:
    """Builds the objects of one answer: chunks of a stream, or the whole."""

    def __init__(self, kind: Kind, *, request_id: str, model: str, created: int) -> None:
        self._kind, self._is_chat = kind, kind == "chat.completion"
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._head = {"id": f"{prefix}-{request_id}", "created": created, "model": model}

    def chunk(
        self, text: str, reason: str | None, *, ids: list[int] | None, opens: bool = False
    ) -> dict[str, Any]:
        """A piece of a stream; `opens` names the speaker, `reason` is set on the last."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self._is_chat:
            choice["delta"] = {"role": "assistant"} if opens else {}
            choice["delta"] |= {"content": text} if text or opens else {}
        else:
            choice["text"] = text
        if ids is not None:
            choice["token_ids"] = ids
        return self._head | {"object": self._streamed, "choices": [choice]}

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The chunk after the last, for clients that asked."""
        return self._head | {"object": self._streamed, "choices": [], "usage": usage}

    def whole(
        self, text: str, reason: str, *, ids: list[int] | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        """The answer in one."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
        if self._is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if ids is not None:
            choice["token_ids"] = ids
        return self._head | {"object": self._kind, "choices": [choice], "usage": usage}

    @property
    def _streamed(self) -> str:
        return "chat.completion.chunk" if self._is_chat else self._kind


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Tokens in, out and both."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def error(message: str, kind: str) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
