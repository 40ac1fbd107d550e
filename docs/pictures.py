"""Makes the pictures of docs/policies.md: fourteen requests under each policy, in virtual time.

`python docs/pictures.py` runs the engine under the adapter, an exporter over the rings, and the
dashboard over the exporter, and photographs the page in a headless Chromium, once per engine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from batchscope.adapters import mini
from batchscope.dashboard import launch
from batchscope.engine.config import EngineConfig
from batchscope.engine.split import run_split
from batchscope.engine.virtual import Simulation
from batchscope.exporter.cli import children

IMAGES = Path(__file__).parent / "images"
MS = 1_000_000
MIDNIGHT_NS = 1_767_225_600_000 * MS
"""1 January 2026, UTC: where virtual time begins, so that the axis counts seconds from zero."""
SHOWN_MS = 2_600
WIDTH, SCALE = 1000, 1.5
START_S, SETTLE_MS = 60.0, 800
BASE = EngineConfig(
    runner="cost",
    max_num_seqs=8,
    max_num_batched_tokens=256,
    max_model_len=1024,
    num_blocks=260,
    enable_prefix_caching=False,
    reservation="max_model_len",
)
POLICIES = {
    "static": replace(BASE, policy="static"),
    "orca": replace(BASE, policy="orca"),
    "paged": replace(BASE, policy="paged", watermark_blocks=2),
    "chunked": replace(BASE, policy="chunked"),
}
HALVES = {
    "split-prefill": POLICIES["paged"],
    "split-decode": replace(BASE, policy="orca", reservation="max_tokens"),
}
LEFT_OUT = ("Running requests", "Waiting and left out")
"""Panes that say nothing here that the swimlane does not show."""
WITHOUT = "legend => { legend.nextElementSibling.remove(); legend.remove(); }"


class Request(NamedTuple):
    """A row of the trace: when it comes, what it brings, how much it wants."""

    ordinal: int
    at_ns: int
    prompt_tokens: int
    output_tokens: int
    abort_after_ns: int | None = None


TRACE = [
    Request(number, at_ms * MS, prompt, output)
    for number, (at_ms, prompt, output) in enumerate(
        (
            (0, 180, 60), (20, 420, 22), (60, 90, 50), (90, 260, 12), (200, 960, 30),
            (260, 120, 44), (420, 300, 20), (480, 150, 52), (600, 980, 16), (680, 80, 36),
            (760, 540, 26), (860, 920, 22), (940, 110, 34), (1050, 350, 18),
        )
    )
]  # fmt: skip
"""Chats, and every third of a second somebody with a long prompt."""


def main() -> int:
    """Write docs/images/policy-*.png; 1 without a Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("pictures: there is no chromium on the path", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        _pages(Path(folder)) as url,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        for engine in (*POLICIES, *HALVES):
            photograph(browser, url, engine)
    return 0


def recorded(folder: Path) -> list[str]:
    """A ring in `folder` for every policy and for both halves of a split; the engines' names."""
    with _watching(folder, POLICIES) as watch:
        for config in POLICIES.values():
            simulation = Simulation(config)
            watch(simulation)
            simulation.run(TRACE)
    with _watching(folder, HALVES) as watch:
        prefill, decode = HALVES.values()
        run_split(TRACE, prefill=prefill, decode=decode, observed=watch)
    return [*POLICIES, *HALVES]


@contextmanager
def _watching(folder: Path, names: Iterable[str]) -> Iterator[Callable[[Simulation], None]]:
    """Attaches to one simulation after the other, under these names."""
    left, watched = iter(names), []

    def watch(simulation: Simulation) -> None:
        env = {"BATCHSCOPE": "1", "BATCHSCOPE_DIR": str(folder), "BATCHSCOPE_OVERHEAD": "0"}
        env |= {"BATCHSCOPE_ENGINE": next(left), "BATCHSCOPE_RING_BYTES": "1048576"}
        clock = simulation.clock
        wall = partial(_wall, clock)
        watched.append((clock, mini.attach(simulation.engine, env, clock=clock, wall=wall)))

    yield watch
    for clock, handle in watched:
        clock.until(2 * SHOWN_MS * MS)  # the mark of detaching lies beyond the picture
        handle.detach()


def _wall(clock: Callable[[], int]) -> int:
    return MIDNIGHT_NS + clock()


@contextmanager
def _pages(folder: Path) -> Iterator[str]:
    """The dashboard over what was recorded; its URL."""
    recorded(folder)
    listen, port = children.free_port(), children.free_port()
    exporter, pages = f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{port}"
    env = {**os.environ, "BATCHSCOPE_TOKEN": "", "BATCHSCOPE_URL": exporter}
    with (
        (folder / "pages.log").open("w") as log,
        children.running(_exporter(folder, listen), env=env),
        children.running(launch.command(port=port), env=env, log=log),
    ):
        _await(f"{exporter}/readyz")
        _await(f"{pages}/_stcore/health")
        yield pages


def _exporter(folder: Path, port: int) -> list[str]:
    """Its command line; virtual time is long ago, and nothing may be deleted for its age."""
    command = [sys.executable, "-m", "batchscope.exporter.cli", "serve", "--keep-days", "36500"]
    command += ["--dir", str(folder), "--store", str(folder / "store.duckdb")]
    return [*command, "--listen", f"127.0.0.1:{port}", "--gpu-hz", "0", "--log", "error"]


def _await(url: str) -> None:
    deadline = time.monotonic() + START_S
    while not children.answers(url):
        if time.monotonic() > deadline:
            raise TimeoutError(url)
        time.sleep(0.1)


def photograph(browser: Browser, pages: str, engine: str) -> None:
    """Panes and swimlane of one engine, as docs/images/policy-ENGINE.png."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": 1400},
        device_scale_factor=SCALE,
        color_scheme="light",
        timezone_id="UTC",
    )
    ends = f"{MIDNIGHT_NS + MS // 10}-{MIDNIGHT_NS + SHOWN_MS * MS}"  # not the mark of attaching
    page.goto(f"{pages}/iterations?engine={engine}/0&zoom={ends}")
    page.locator(".swimlane canvas").wait_for(timeout=30_000)
    for title in LEFT_OUT:
        page.locator(".timeline .legend", has_text=title).evaluate(WITHOUT)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=IMAGES / f"policy-{engine}.png", clip=_framed(page))
    page.close()


def _framed(page: Page) -> Any:
    """From the top of the first pane to the bottom of the swimlane."""
    top = page.locator(".timeline").bounding_box()
    bottom = page.locator(".swimlane").bounding_box()
    if top is None or bottom is None:
        raise RuntimeError("the page drew nothing")
    height = bottom["y"] + bottom["height"] - top["y"]
    return {"x": top["x"], "y": top["y"], "width": top["width"], "height": height}


if __name__ == "__main__":
    sys.exit(main())
