"""HELLO: who this engine is, how it was started, what its adapter can see. Made once, at attach."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from batchscope.adapters.base import Adapter
from batchscope.schemas.reasons import Provides, Role
from batchscope.schemas.records import SCHEMA_VERSION

_SECRET = re.compile(
    r"(^|[_-])(secrets?|passwords?|passwd|credentials?|authorization|auth|private[_-]?key|api[_-]?keys?"
    r"|access[_-]?keys?|(hf|access|auth|api|bearer)[_-]?tokens?|token)$",
    re.IGNORECASE,
)
"""Names of settings that hold secrets. Not every *token*: engines count those."""


def hello_for(
    adapter: Adapter, engine: Any, env: Mapping[str, str], *, missing: frozenset[str], level: int
) -> dict[str, Any]:
    """The keys of HELLO, unknown ones left out. `missing` names seams that the engine lacks."""
    said = adapter.hello(engine)
    config = without_secrets(said.pop("config", {}))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": adapter.kind,
        "engine": env.get("BATCHSCOPE_ENGINE") or _default_name(adapter.kind, said),
        "role": Role.BOTH.value,
        "dp_rank": 0,
        "config": config,
        "config_hash": config_hash(config),
        "adapter_version": own_version(),
        "provides": provides(adapter, missing),
        "level": level,
        **said,
    }


def _default_name(kind: str, said: Mapping[str, Any]) -> str:
    """Halves of a split have names of their own: figures are asked for by engine."""
    role = said.get("role", Role.BOTH.value)
    return kind if role == Role.BOTH.value else f"{kind}-{role}"


def provides(adapter: Adapter, missing: frozenset[str]) -> dict[str, str]:
    """Field -> exact, estimated or absent; "records" of a missing seam are absent."""
    fields = {field: how.value for field, how in adapter.provides.items()}
    return fields | {f"seam:{name}": Provides.ABSENT.value for name in sorted(missing)}


def without_secrets(config: Any) -> Any:
    """The same config without the settings whose names say secret, at any depth."""
    if isinstance(config, Mapping):
        kept = {str(k): v for k, v in config.items() if not _SECRET.search(str(k))}
        return {k: without_secrets(v) for k, v in kept.items()}
    if isinstance(config, (list, tuple)):
        return [without_secrets(item) for item in config]
    return config if isinstance(config, (str, int, float, bool, type(None))) else str(config)


def config_hash(config: Any) -> str:
    """16 hex digits of the canonical JSON's SHA-256."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]


def own_version() -> str:
    """Version of the installed distribution, adapters and bundled engine alike."""
    try:
        return version("batchscope")
    except PackageNotFoundError:
        return "unknown"
