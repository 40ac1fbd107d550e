"""Settings: flag > environment > file > default, and one sentence for what can't be used."""

import sys
from pathlib import Path
from typing import Any

import pytest

from batchscope.exporter.config import SETTINGS, config_files, is_loopback, resolve
from batchscope.exporter.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
ENV = {"HOME": "/home/someone"}


def toml(tmp_path: Any, text: Any, name: Any = "batchscope.toml") -> Any:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_stronger_place_wins_and_is_named(tmp_path: Any) -> None:
    file = toml(tmp_path, 'queue = "1MB"\nmemory = "1GB"\nslo = "ttft<=1s"\n')
    env = ENV | {"BATCHSCOPE_MEMORY": "2GB", "BATCHSCOPE_SLO": "ttft<=2s"}
    config = resolve({"slo": "ttft<=3s"}, env=env, files=[file])
    assert str(config["slo"]) == "ttft<=3000ms"
    assert (config["memory"], config["queue"]) == (2 << 30, 1 << 20)
    assert config.origins["slo"] == "flag --slo"
    assert config.origins["memory"] == "environment BATCHSCOPE_MEMORY"
    assert config.origins["queue"] == f"file {file}"
    assert config.origins["listen"] == "default"


def test_the_first_file_that_has_a_setting_wins(tmp_path: Any) -> None:
    near = toml(tmp_path, "gpu_hz = 5\n", "near.toml")
    far = toml(tmp_path, 'gpu_hz = 2\nlog = "debug"\nread_only = true\n', "far.toml")
    config = resolve({}, env=ENV, files=[near, tmp_path / "missing.toml", far])
    assert (config["gpu_hz"], config["log"], config["read_only"]) == (5.0, "debug", True)


def test_files_are_looked_for_here_then_in_the_config_home() -> None:
    here, home = config_files(ENV | {"XDG_CONFIG_HOME": "/etc/xdg"}, cwd=Path("/srv"))
    assert (str(here), str(home)) == ("/srv/batchscope.toml", "/etc/xdg/batchscope/batchscope.toml")
    assert str(config_files(ENV, cwd=Path())[1]).startswith("/home/someone/.config/")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("listen", "9477", "flag --listen: can't use '9477' for listen: write it as"),
        ("listen", "127.0.0.1:99999", "write it as"),
        ("keep_size", "1MB", "must be 64MB or more"),
        ("memory", "lots", "write a size as"),
        ("slo", "speed<=1s", "unknown SLO term 'speed'"),
        ("otlp", "collector:4318", "write a URL"),
        ("otlp_protocol", "smoke", "must be one of http, grpc"),
        ("gpu_hz", "1000", "must lie between 0 and 10"),
        ("keep_days", "x", "not a number"),
        ("read_only", "perhaps", "true or false"),
    ],
)
def test_a_bad_value_is_one_sentence_with_place_and_cure(name: Any, text: Any, words: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({name: text}, env=ENV)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colour = 1\n", "unknown setting 'colour'"),
        ("[server]\nport = 1\n", "unknown setting 'server'"),
        ("gpu_hz = [1]\n", "gpu_hz in "),
        ("gpu_hz = \n", "can't read"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Any, text: Any, words: Any) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(ConfigError, match=r"batchscope\.toml") as caught:
        resolve({}, env=ENV, files=[file])
    assert words in str(caught.value)


def test_the_printed_configuration_hides_secrets_and_shows_every_setting() -> None:
    config = resolve({}, env=ENV | {"BATCHSCOPE_TOKEN": "hush"})
    lines = config.lines()
    assert len(lines) == len(SETTINGS)
    assert 'token = "***"  # environment BATCHSCOPE_TOKEN' in lines
    assert 'listen = "127.0.0.1:9477"  # default' in lines
    assert "otlp = (unset)  # default" in lines
    assert not any("hush" in line for line in lines)


def test_addresses_of_this_machine_are_told_from_others() -> None:
    assert [is_loopback(h) for h in ("localhost", "127.9.0.1", "::1")] == [True] * 3
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "10.0.0.1")] == [False] * 3


def test_a_token_may_lie_in_a_file_and_the_token_itself_wins(tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    env = ENV | {"BATCHSCOPE_TOKEN_FILE": str(file)}
    assert resolve({}, env=env).token == "s3cret"
    assert resolve({}, env=env | {"BATCHSCOPE_TOKEN": "mine"}).token == "mine"
    assert resolve({}, env=ENV).token is None
    assert not any("s3cret" in line for line in resolve({}, env=env).lines())
    with pytest.raises(ConfigError, match=r"TOKEN_FILE.*can't be read"):
        resolve({}, env=ENV | {"BATCHSCOPE_TOKEN_FILE": str(tmp_path / "none")})
