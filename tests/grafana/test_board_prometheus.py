"""Every expression of the board returns something from a real Prometheus that scraped us."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from grafana import build
from tests.exporter import engine_views as ev
from tests.exporter.scripted_runs import fold, rich, view

from batchscope.exporter.exemplars import Exemplars
from batchscope.exporter.prom import Exposition
from batchscope.exporter.spans import Span
from batchscope.exporter.views import EngineView

ROOT = Path(build.__file__).parent.parent
CACHE = ROOT / ".cache" / "prometheus" / "usr" / "bin"
RULE_TEST = Path(__file__).with_name("alerts_test.yml")
pytestmark = pytest.mark.prometheus


def program(name: str) -> str:
    """Path of a binary; without it the test is skipped, but fails where CI promised it."""
    cached = CACHE / name
    found = str(cached) if cached.exists() else shutil.which(name)
    if found is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing(f"{name} is missing: run .ci/prometheus.sh")
        raise AssertionError
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def exposition() -> Exposition:
    """Two engines that repeat the same run between any two scrapes; the exporter's own and GPUs."""
    exemplars = Exemplars()
    about: dict[str, Any] = {
        "batchscope.iteration.interval": 0.0101,
        "batchscope.iteration.phase": "decode",
        "batchscope.iteration.decode_gap_members": 3,
    }
    labels = ("mini-0", "tiny", "0", "both")
    exemplars.note(labels, Span("iteration", "", 7, 1, 0, 0, time.time_ns(), about))
    runs = [rich(f"mini-{n}") for n in range(2)]
    once = [view(run, fold(run)[0]) for run in runs]
    shown = list(once)
    scrapes = itertools.count(1)

    def views() -> list[EngineView]:
        for i, engine in enumerate(once):
            shown[i] = replace(engine, totals=shown[i].totals + engine.totals)
        return list(shown)

    def exporter_values() -> dict[Any, float]:
        n = next(scrapes)
        counters = ev.series("exporter", ("counter",), lambda m: round(n / m.scale))
        known = ev.exporter_values()
        return known | {key: value for key, value in counters.items() if key in known}

    return Exposition(views, exporter_values, ev.gpu_values, exemplars)


@pytest.fixture(scope="module")
def scraped() -> Iterator[str]:
    """URL of the exposition on loopback."""
    exposed = exposition()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            accept = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
            body, kind, encoding = exposed.render(*accept)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    url: str

    def get(self, path: str, **params: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(params)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, expression: str) -> list[Any]:
        return list(self.get("query", query=expression)["result"])

    def scrapes(self) -> int:
        try:
            counted = self.ask("count_over_time(batchscope_build_info[1m])")
        except OSError:
            return 0
        return int(counted[0]["value"][1]) if counted else 0


@pytest.fixture(scope="module")
def prometheus(scraped: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "grafana" / "alerts.yml")],
        "scrape_configs": [{"job_name": "batchscope", "static_configs": [{"targets": [scraped]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 60
        while server.scrapes() < 4 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert server.scrapes() >= 4, (folder / "log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(20)


def filled_in(expression: str) -> str:
    """As Grafana asks it with everything selected."""
    replaced = {"$engine": ".*", "$model_name": ".*", "$__rate_interval": "30s"}
    for variable, value in replaced.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def test_every_expression_of_the_board_returns_numbers(prometheus: Prometheus) -> None:
    answers = {e: prometheus.ask(filled_in(e)) for e in build.expressions()}
    empty = [
        expression
        for expression, found in answers.items()
        if not any(math.isfinite(float(series["value"][1])) for series in found)
    ]
    assert empty == []


def test_an_expression_over_a_metric_that_never_existed_would_be_noticed(
    prometheus: Prometheus,
) -> None:
    assert prometheus.ask("rate(batchscope_made_up_total[30s])") == []


def test_variables_offer_the_engines(prometheus: Prometheus) -> None:
    selector = {"match[]": "batchscope_engine_up"}
    assert prometheus.get("label/engine/values", **selector) == ["mini-0", "mini-1"]


def test_what_a_scrape_cost_prometheus_saw_no_fault(prometheus: Prometheus) -> None:
    (target,) = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def test_exemplars_arrive(prometheus: Prometheus) -> None:
    asked = {"query": "batchscope_time_between_tokens_seconds_bucket", "start": "0", "end": "9e9"}
    found = prometheus.get("query_exemplars", **asked)
    assert {e["labels"]["trace_id"] for s in found for e in s["exemplars"]} == {f"{7:032x}"}


def test_recorded_goodput_is_there_and_rules_are_healthy(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
    deadline = time.monotonic() + 20
    while not prometheus.ask("batchscope:goodput_requests:rate5m"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_promtool_finds_nothing_to_say_about_our_metrics() -> None:
    text = exposition().render("", "")[0]
    command = [program("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=text, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_rules_are_valid_and_the_wedge_alarm_tells_idle_from_wedged() -> None:
    for arguments in (
        ["check", "rules", "--lint-fatal", str(ROOT / "grafana" / "alerts.yml")],
        ["test", "rules", str(RULE_TEST)],
    ):
        command = [program("promtool"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
