"""Settings of the exporter as one table: flag, then environment, then file, then default.

Standard library only: the CLI reads this before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchscope.exporter.addresses import parse as address
from batchscope.exporter.errors import ConfigError
from batchscope.schemas.ring import ring_folder
from batchscope.schemas.slo import Slo, SloError

Env = Mapping[str, str]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?$", re.IGNORECASE)
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
LEAST_KEPT = 64 << 20
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _size(text: str) -> int:
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError("write a size as 512MB or 8GB")
    return round(float(match[1]) * _SCALE[match[2].upper()])


def _kept(text: str) -> int:
    if _size(text) < LEAST_KEPT:
        raise ValueError("must be 64MB or more: space is freed by groups of 122,880 rows")
    return _size(text)


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError("not a number") from None
        if not low <= number <= high:
            raise ValueError(f"must lie between {low:g} and {high:g}")
        return number

    return parse


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ValueError("write true or false")
    return _TRUTH[text.lower()]


def _path(text: str) -> Path:
    if not text:
        raise ValueError("a path can't be empty")
    return Path(text).expanduser()


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return parse


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError("write a URL as http://host:4318")
    return text


def _slo(text: str) -> Slo:
    try:
        return Slo.parse(text)
    except SloError as error:
        raise ValueError(str(error)) from None


def _secret(text: str) -> str:
    """The first line of a file. Raises ValueError when there is none."""
    try:
        secret = Path(text).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"it can't be read: {error.strerror}") from None
    if not secret:
        raise ValueError("the file is empty")
    return secret


def _folder(env: Env) -> str | None:
    folder = ring_folder(env)
    return None if folder is None else str(folder)


def _store(env: Env) -> str:
    state = env.get("XDG_STATE_HOME") or str(
        Path(env.get("HOME") or "~").expanduser() / ".local/state"
    )
    return f"{state}/batchscope/batchscope.duckdb"


@dataclass(frozen=True)
class Setting:
    """One setting: how its text is read, and its default as a user would write it.

    default: text, or made from the environment; None: unset. A secret has no flag: others can read
    a command line.
    """

    name: str
    parse: Callable[[str], Any]
    metavar: str
    default: str | Callable[[Env], str | None] | None
    help: str
    secret: bool = False

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"BATCHSCOPE_{self.name.upper()}"

    @property
    def flag(self) -> str | None:
        """The command line flag."""
        return None if self.secret else "--" + self.name.replace("_", "-")


# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("dir", _path, "DIR", _folder, "folder of the rings"),
    Setting("store", _path, "FILE", _store, "DuckDB file to write"),
    Setting("read_only", _truth, "BOOL", "false", "answer from the store only, follow no ring"),
    Setting("listen", address, "HOST:PORT", "127.0.0.1:9477", "off loopback only with a token"),
    Setting("token", str, "TOKEN", None, "clients send it as Authorization: Bearer", secret=True),
    Setting("token_file", _secret, "FILE", None, "a file that holds the token"),
    Setting("slo", _slo, "SLO", None, "judge requests by it, e.g. ttft<=2s,tbt_p99<=200ms"),
    Setting("memory", _size, "SIZE", "256MB", "memory of the store"),
    Setting("queue", _size, "SIZE", "64MB", "rows that may wait while the store can't write"),
    Setting("keep_size", _kept, "SIZE", "8GB", "beyond it the oldest detail is deleted"),
    Setting("keep_days", _number(0.001, 36500), "DAYS", "14", "what is older is deleted"),
    Setting("otlp", _url, "URL", None, "send spans to this OTLP receiver"),
    Setting("otlp_protocol", _one_of("http", "grpc"), "NAME", "http", "http or grpc"),
    Setting("otlp_metrics", _truth, "BOOL", "false", "push all figures there, too"),
    Setting("otlp_ratio", _number(0, 1), "RATIO", "1", "ordinary spans to send; stalls always are"),
    Setting("gpu_hz", _number(0, 10), "HZ", "1", "GPU samples per second, 0 for none"),
    Setting("log", _one_of("error", "warning", "info", "debug"), "LEVEL", "info", "what to print"),
)
# fmt: on
BY_NAME = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Config:
    """Parsed values by setting name (None: unset), and where each came from."""

    values: Mapping[str, Any]
    texts: Mapping[str, str | None]
    origins: Mapping[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def token(self) -> str | None:
        """What clients must send; the token itself wins over the file that holds one."""
        token: str | None = self["token"] or self["token_file"]
        return token

    def lines(self) -> list[str]:
        """`name = value  # origin`, secrets hidden: what --print-config shows."""
        return [f"{s.name} = {self._shown(s)}  # {self.origins[s.name]}" for s in SETTINGS]

    def _shown(self, setting: Setting) -> str:
        text = self.texts[setting.name]
        if text is None:
            return "(unset)"
        return '"***"' if setting.secret else f'"{text}"'


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per setting that has one. Values stay text: `resolve` judges them all alike."""
    for setting in SETTINGS:
        if setting.flag:
            bare = {"nargs": "?", "const": "true"} if setting.parse is _truth else {}
            default = setting.default if isinstance(setting.default, str) else None
            note = f" ({setting.env}{f', default {default}' if default else ''})"
            parser.add_argument(
                setting.flag,
                dest=setting.name,
                metavar=setting.metavar,
                help=(setting.help + note).replace("%", "%%"),
                **bare,  # type: ignore[arg-type]
            )


def resolve(flags: Mapping[str, str | None], *, env: Env, files: Iterable[Path] = ()) -> Config:
    """Flag > environment > file > default. Raises ConfigError that names the place and the cure."""
    read = {path: read_file(path) for path in files if path.is_file()}
    found = {s.name: _find(s, flags, env, read) for s in SETTINGS}
    values = {name: _parsed(BY_NAME[name], text, place) for name, (text, place) in found.items()}
    texts = {name: text for name, (text, _) in found.items()}
    return Config(values, texts, {name: place for name, (_, place) in found.items()})


def config_files(env: Env, *, cwd: Path) -> list[Path]:
    """Where a configuration file may lie, the stronger first."""
    home = env.get("XDG_CONFIG_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".config")
    return [cwd / "batchscope.toml", Path(home) / "batchscope" / "batchscope.toml"]


def read_file(path: Path) -> dict[str, str]:
    """Settings of one TOML file as text. Raises ConfigError for what isn't a setting."""
    try:
        import tomllib
    except ModuleNotFoundError:
        raise ConfigError(f"reading {path} needs Python 3.11; use flags or variables") from None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't read {path}: {error}") from None
    for key, value in content.items():
        _check_entry(path, key, value)
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in content.items()}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def from_process(flags: Mapping[str, str | None]) -> Config:
    """The settings of this very process."""
    return resolve(flags, env=os.environ, files=config_files(os.environ, cwd=Path.cwd()))


def _check_entry(path: Path, key: str, value: Any) -> None:
    if key not in BY_NAME:
        raise ConfigError(f"unknown setting {key!r} in {path}; known: {', '.join(BY_NAME)}")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{key} in {path} must be a text, a number or true/false")


def _find(
    setting: Setting, flags: Mapping[str, str | None], env: Env, read: Mapping[Path, Env]
) -> tuple[str | None, str]:
    """(text, origin) of the strongest place that has the setting."""
    given = flags.get(setting.name)
    if given is not None:
        return given, f"flag {setting.flag}"
    if env.get(setting.env):
        return env[setting.env], f"environment {setting.env}"
    for path, content in read.items():
        if setting.name in content:
            return content[setting.name], f"file {path}"
    default = setting.default(env) if callable(setting.default) else setting.default
    return default, "default"


def _parsed(setting: Setting, text: str | None, place: str) -> Any:
    if text is None:
        return None
    try:
        return setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{place}: can't use {text!r} for {setting.name}: {error}") from None
