"""What a load generator hands in: the shape of a client run and of its requests, and their rows.

Everything is checked here: a row that did not fit its column would hold up the store's commits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from batchscope.exporter import facts
from batchscope.schemas.request_keys import request_key

MOST_REQUESTS = 1_000
"""In one post; a body's size ends it sooner."""


def storable(text: str) -> str:
    """The text itself. ValueError when the store can't keep it."""
    if "\0" in text:
        raise ValueError("text must be without NUL")
    text.encode("utf-8")  # a lone surrogate: UnicodeEncodeError is a ValueError
    return text


Text = Annotated[str, Field(max_length=256), AfterValidator(storable)]
Word = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
RunId = Annotated[str, Field(pattern=r"^[0-9A-Za-z_.-]{1,64}$")]
Instant = Annotated[int, Field(ge=0, lt=2**62)]
Duration = Annotated[int, Field(gt=-(2**62), lt=2**62)]
Count = Annotated[int, Field(ge=0, lt=2**32)]


class NewClientRun(BaseModel):
    """A replay as a whole; columns of client_runs."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run: RunId
    name: Text | None = None
    target: Text
    began_unix_ns: Instant
    unix_ns: Instant
    warm_up_ns: Instant = 0
    requests: Count
    most_under_way: Count
    under_way_cap: Count
    interrupted: bool = False
    slo: Text | None = None
    traffic: Annotated[str, Field(max_length=16_384), AfterValidator(storable)] = "{}"


class ClientRequest(BaseModel):
    """A request as its client saw it; columns of client_requests. names: every id under which the
    engine may know it.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    ordinal: Count
    request_id: Text
    names: list[Text] = Field(default=[], max_length=8)
    scheduled_unix_ns: Instant
    unix_ns: Instant
    warm_up: bool = False
    status: Word
    http_status: Count | None = None
    finish_reason: Text | None = None
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    lateness_ns: Duration | None = None
    ttft_ns: Duration | None = None
    e2e_ns: Duration | None = None
    tpot_ns: Duration | None = None
    tbt_p50_ns: Duration | None = None
    tbt_p90_ns: Duration | None = None
    tbt_p95_ns: Duration | None = None
    tbt_p99_ns: Duration | None = None
    tbt_max_ns: Duration | None = None
    verdict: Word | None = None


class NewClientRequests(BaseModel):
    """Some requests of a run."""

    model_config = ConfigDict(strict=True, extra="forbid")

    run: RunId
    requests: list[ClientRequest] = Field(min_length=1, max_length=MOST_REQUESTS)


def run_row(new: NewClientRun) -> facts.Row:
    """Its row."""
    return new.model_dump()


def request_rows(new: NewClientRequests, *, salt: bytes | None) -> list[facts.Row]:
    """Their rows. Without the folder's salt a hashed id can't be found again."""
    return [_row(new.run, one, salt) for one in new.requests]


def _row(run: str, one: ClientRequest, salt: bytes | None) -> facts.Row:
    ids = list(dict.fromkeys([one.request_id, *one.names]))
    hashed = [f"{request_key(id_, salt):016x}" for id_ in ids] if salt else []
    return {"run": run, **one.model_dump(exclude={"names"}), "keys": ids + hashed}
