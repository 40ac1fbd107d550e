"""The command line: cheap to start, one sentence for a mistake, exit codes that mean something."""

import os
import socket
import subprocess
import sys
from typing import Any

import pytest


def batchscope(*words: Any, env: Any = None, timeout: Any = 60) -> Any:
    command = [sys.executable, "-m", "batchscope.exporter.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONWARNINGS": "error", **(env or {})}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env=environment, check=False
    )


def assert_one_sentence(done: Any, code: Any, *words: Any) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


def test_importing_it_costs_only_the_standard_library() -> None:
    code = (
        "import sys, batchscope.exporter.cli as c; c._parser([]);"
        "heavy = {'numpy', 'duckdb', 'pyarrow', 'fastapi'} & set(sys.modules);"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--colour", "red"], "unrecognized arguments: --colour red"),
        (["serv"], "invalid choice: 'serv'"),
        ([], "required: COMMAND"),
        (["serve", "--listen", "nowhere"], "--listen"),
        (["serve", "--slo", "fast"], "'fast'"),
        (["serve", "--listen", "0.0.0.0:0"], "BATCHSCOPE_TOKEN"),
        (
            ["dashboard", "--listen", "127.0.0.1:0", "--store", "/nonexistent/x.duckdb"],
            "no file /nonexistent/x.duckdb",
        ),
        (["dashboard", "--listen", "x"], "--listen"),
        (["dashboard", "--listen", "0.0.0.0:0"], "authenticating proxy in front"),
        (["dashboard", "--listen", "[::]:0"], "--allow-unauthenticated"),
        (["dashboard", "--exporter", "nonsense"], "can't use 'nonsense' for --exporter"),
        (["dashboard", "--colour"], "(see batchscope dashboard --help)"),
        (["request"], "(see batchscope request --help)"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words: Any, said: Any, tmp_path: Any) -> None:
    assert_one_sentence(batchscope(*words, env={"BATCHSCOPE_TOKEN": ""}), 2, said)


def test_the_pages_may_be_opened_to_others_on_purpose() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        listen = f"0.0.0.0:{taken.getsockname()[1]}"
        done = batchscope("dashboard", "--listen", listen, "--allow-unauthenticated")
    assert_one_sentence(done, 2, f"can't listen on {listen}", "in use")


def test_a_taken_port_is_one_sentence(tmp_path: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = batchscope(
            "serve", "--listen", f"127.0.0.1:{port}", "--store", tmp_path / "s.duckdb"
        )
        assert_one_sentence(done, 2, f"can't listen on 127.0.0.1:{port}", "in use")
    assert not (tmp_path / "s.duckdb").exists()


def test_a_missing_extra_says_what_to_install(tmp_path: Any) -> None:
    (tmp_path / "duckdb.py").write_text("raise ModuleNotFoundError('gone', name='duckdb')")
    done = batchscope("serve", "--listen", "127.0.0.1:0", env={"PYTHONPATH": str(tmp_path)})
    assert_one_sentence(done, 2, "serve needs duckdb: pip install 'batchscope[exporter]'")


def test_print_config_shows_values_and_origins(tmp_path: Any) -> None:
    (tmp_path / "batchscope.toml").write_text('memory = "1GB"\n')
    code = "from batchscope.exporter.cli import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--print-config", "--gpu-hz", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert 'gpu_hz = "0"  # flag --gpu-hz' in lines
    assert f'memory = "1GB"  # file {tmp_path}/batchscope.toml' in lines


def test_the_version_is_told() -> None:
    assert batchscope("--version").stdout.startswith("batchscope ")


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    words = [sys.executable, "-m", "batchscope.exporter.cli", "serve", "--print-config"]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr is not None
    assert child.stderr.read() == b""
    child.stderr.close()
