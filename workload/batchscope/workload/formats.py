"""The public trace formats as data: what a header looks like and how a row becomes a Row.

Adding a format is one entry of FORMATS and its parser. Called by `read`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from batchscope.workload.cells import (
    NS_PER_MS,
    NS_PER_S,
    blocks,
    cell,
    instant_ns,
    spelled,
    stamp_ns,
    tokens,
    zoned,
)
from batchscope.workload.source import Fields


class Row(NamedTuple):
    """One arrival on the source's own time axis."""

    at_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] | None = None
    session: str | None = None
    model: str | None = None
    abort_after_ns: int | None = None
    block_tokens: int | None = None


Parse = Callable[[Fields], Row]


@dataclass(frozen=True)
class Format:
    """How to know a format and read it.

    `columns` are the CSV header, or the keys of the first JSON object, but for those `optional`
    ones that it lacks; `zoned` tells two formats with the same columns apart by their stamps;
    `parser()` gives a parser for one file (some remember earlier rows); `no_output` is what a row
    with 0 output tokens means there.
    """

    name: str
    columns: frozenset[str]
    parser: Callable[[], Parse]
    block_tokens: int | None = None
    zoned: bool | None = None
    no_output: str = "no_output_tokens"
    optional: frozenset[str] = frozenset()

    def lacking(self, fields: Fields) -> list[str]:
        """Columns that it needs and these don't have, by name."""
        return sorted(self.columns - self.optional - fields.keys())

    def foreign(self, fields: Fields) -> list[str]:
        """Columns that these have and it doesn't know, in their order."""
        return [name for name in fields if name not in self.columns]


def azure(fields: Fields) -> Row:
    """Azure LLM inference traces: a calendar stamp and two counts."""
    at_ns = stamp_ns(fields, "TIMESTAMP")
    return Row(at_ns, tokens(fields, "ContextTokens"), tokens(fields, "GeneratedTokens"))


def burstgpt(fields: Fields) -> Row:
    """BurstGPT: seconds from day 0; version 2 adds sessions."""
    return Row(
        instant_ns(fields, "Timestamp", unit_ns=NS_PER_S),
        tokens(fields, "Request tokens"),
        tokens(fields, "Response tokens"),
        session=fields.get("Session ID") or None,
        model=fields["Model"] or None,
    )


def mooncake(fields: Fields) -> Row:
    """Mooncake: milliseconds, and the hash of each 512-token block with all before it."""
    at_ns = instant_ns(fields, "timestamp", unit_ns=NS_PER_MS)
    return _hashed(fields, at_ns, session=None)


def qwen_bailian() -> Parse:
    """Qwen-Bailian: seconds, 16-token blocks, chats that name the chat they continue. A session is
    the first chat of such a chain as far as the file shows it.
    """
    roots: dict[str, str] = {}

    def parse(fields: Fields) -> Row:
        chat, parent = str(cell(fields, "chat_id")), str(cell(fields, "parent_chat_id"))
        session = chat if parent in _NO_PARENT else roots.get(parent, parent)
        roots[chat] = session
        return _hashed(fields, instant_ns(fields, "timestamp", unit_ns=NS_PER_S), session=session)

    return parse


_NO_PARENT = ("-1", "None", "")


def _hashed(fields: Fields, at_ns: int, *, session: str | None) -> Row:
    prompt, output = tokens(fields, "input_length"), tokens(fields, "output_length")
    return Row(at_ns, prompt, output, prefix=blocks(fields, "hash_ids"), session=session)


def batchscope(fields: Fields) -> Row:
    """Our own, as `written` writes it: nanoseconds, nothing lost; null or left out is unknown."""
    known = {name: fields.get(name) is not None for name in OWN_OPTIONAL}
    return Row(
        instant_ns(fields, "at_ns", unit_ns=1),
        tokens(fields, "prompt_tokens"),
        tokens(fields, "output_tokens"),
        prefix=blocks(fields, "prefix") if known["prefix"] else None,
        session=str(fields["session"]) if known["session"] else None,
        model=str(fields["model"]) if known["model"] else None,
        abort_after_ns=_positive(fields, "abort_after_ns") if known["abort_after_ns"] else None,
        block_tokens=_positive(fields, "block_tokens") if known["prefix"] else None,
    )


def _positive(fields: Fields, name: str) -> int:
    value = instant_ns(fields, name, unit_ns=1)
    if value < 1:
        raise ValueError(f"{name} is {spelled(fields[name])}, not above 0")
    return value


_AZURE = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})
_BURSTGPT = frozenset(
    {"Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"}
)
_MOONCAKE = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})

OWN_OPTIONAL = ("abort_after_ns", "session", "model", "block_tokens", "prefix")
OWN_COLUMNS = ("at_ns", "prompt_tokens", "output_tokens", *OWN_OPTIONAL)

FORMATS = (
    Format(
        "batchscope",
        frozenset(OWN_COLUMNS),
        lambda: batchscope,
        optional=frozenset(OWN_OPTIONAL),
    ),
    Format("azure-2023", _AZURE, lambda: azure, zoned=False),
    Format("azure-2024", _AZURE, lambda: azure, zoned=True),
    Format("burstgpt-v1", _BURSTGPT, lambda: burstgpt, no_output="failed"),
    Format(
        "burstgpt-v2",
        _BURSTGPT | {"Session ID", "Elapsed time"},
        lambda: burstgpt,
        no_output="failed",
    ),
    Format("mooncake", _MOONCAKE, lambda: mooncake, block_tokens=512),
    Format(
        "qwen-bailian",
        _MOONCAKE | {"chat_id", "parent_chat_id", "type", "turn"},
        qwen_bailian,
        block_tokens=16,
    ),
)
LENGTHS_COLUMNS = frozenset(
    {"num_prefill_tokens", "num_decode_tokens", "num_total_tokens", "pd_ratio"}
)
CLIENTS_COLUMNS = frozenset({"client", "window_start_s", "rate", "cv", "pattern", "arg1", "arg2"})


def recognise(fields: Fields) -> Format | None:
    """The arrivals format of a file whose first row is `fields`, or None."""
    with_zone = zoned(str(fields.get("TIMESTAMP")))
    candidates = (one for one in FORMATS if not one.lacking(fields) and not one.foreign(fields))
    return next((known for known in candidates if known.zoned in (None, with_zone)), None)


def nearest(fields: Fields) -> Format | None:
    """The format that differs in the fewest columns of those that share one, or None."""
    related = (known for known in FORMATS if known.columns & fields.keys())
    return min(
        related,
        key=lambda known: len(known.lacking(fields)) + len(known.foreign(fields)),
        default=None,
    )
