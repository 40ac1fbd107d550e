"""Both pages in a real browser: drawn, silent on the console, and zooming by asking again."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from tests.dashboard.processes import exporter, pages

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
TRAFFIC = ("--rate", "5.2", "--slots", "24", "--blocks", "900", "--seconds", "100")
INKED = """canvas => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    return new Set(new Uint32Array(data.buffer)).size;
}"""
"""How many colours a canvas shows: an empty one shows one."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("CI") != "true", reason="there is no Chromium here"
    ),
]


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, str]]:
    """Addresses: an exporter with traffic, the pages over it, the pages over an empty one."""
    with ExitStack() as stack:
        busy = stack.enter_context(exporter(*TRAFFIC))
        idle = stack.enter_context(exporter("--empty"))
        yield {
            "exporter": busy,
            "busy": stack.enter_context(pages(busy)),
            "empty": stack.enter_context(pages(idle)),
        }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


Open = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens a page; afterwards nothing may have complained, nor asked beyond loopback."""
    complaints: list[str] = []
    opened: list[Page] = []

    def start(url: str, *, theme: str = "light", width: int = 1280) -> Page:
        page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)  # type: ignore[arg-type]
        page.on("console", lambda m: complaints.append(m.text) if is_complaint(m) else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: None if local(r.url) else complaints.append(r.url))
        page.goto(url)
        opened.append(page)
        return page

    yield start
    for page in opened:
        page.close()
    assert complaints == []


def is_complaint(message: ConsoleMessage) -> bool:
    """An error, except that Streamlit looks for its server below a page's own path first."""
    return message.type == "error" and "/iterations/_stcore/" not in message.location["url"]


def local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))


def to_iterations(page: Page) -> None:
    page.get_by_role("link", name="Iterations").click()
    expect(page.locator(".timeline")).to_have_attribute("data-range", RANGE, timeout=15_000)


RANGE = "1794999940000 1795000000000"


def asked(url: str, name: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/log") as answer:
        log: list[str] = json.load(answer)
    return [line for line in log if f"/query/{name}?" in line]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_now_shows_every_group_of_figures_and_refreshes_them_in_place(
    sites: dict[str, str], visit: Open, theme: str
) -> None:
    page = visit(sites["busy"], theme=theme)
    board = page.locator(".board")
    expect(board.locator("section")).to_have_count(7, timeout=15_000)
    expect(board.locator(".status.live")).to_contain_text("Live")
    assert "NaN" not in board.inner_text()
    assert "undefined" not in board.inner_text()
    board.evaluate("board => { board.mark = 'same element'; }")
    before = len(asked(sites["exporter"], "now"))
    poll(page, lambda: len(asked(sites["exporter"], "now")) > before)
    assert board.evaluate("board => board.mark") == "same element"


def poll(page: Page, holds: Callable[[], bool], *, tries: int = 80) -> None:
    """Until it holds, for at most 8 s of the page's life."""
    for _ in range(tries):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError("never happened")


def test_iterations_draws_every_pane_and_the_swimlane_says_who_was_there(
    sites: dict[str, str], visit: Open
) -> None:
    page = visit(sites["busy"], theme="dark", width=1920)
    to_iterations(page)
    panes = page.locator(".timeline canvas")
    expect(panes).to_have_count(5)
    assert all(panes.nth(i).evaluate(INKED) > 3 for i in range(5))
    lanes = page.locator(".swimlane canvas")
    expect(lanes).to_be_visible(timeout=8_000)
    assert lanes.evaluate(INKED) > 5
    lanes.hover(position={"x": 300, "y": 40})
    expect(page.locator(".swimlane .tip")).to_contain_text("request #")
    expect(page.locator(".swimlane .tip")).to_contain_text("iteration ")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920


def drag(page: Page, start: float, end: float) -> None:
    box = page.locator(".u-over").first.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * start, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, y, steps=4)
    page.mouse.up()


def test_a_drag_asks_for_that_range_a_click_for_members_and_a_double_click_goes_back(
    sites: dict[str, str], visit: Open
) -> None:
    page = visit(sites["busy"])
    to_iterations(page)
    drag(page, 0.7, 0.75)
    timeline = page.locator(".timeline")
    expect(timeline).not_to_have_attribute("data-range", RANGE, timeout=8_000)
    start, end = (float(part) for part in (timeline.get_attribute("data-range") or "").split())
    assert start == pytest.approx(1794999940000 + 0.7 * 60_000, abs=300)
    assert end - start == pytest.approx(0.05 * 60_000, abs=200)
    assert f"from_ns={round(start * 1e6)}&" in asked(sites["exporter"], "timeline")[-1]
    zoomed = timeline.get_attribute("data-range") or ""
    page.reload()
    expect(timeline).to_have_attribute("data-range", zoomed, timeout=15_000)
    page.locator(".u-over").first.click(position={"x": 700, "y": 60})
    expect(page.get_by_text(re.compile(r"Iteration \d+: \d+ members?"))).to_be_visible(
        timeout=8_000
    )
    page.locator(".u-over").first.dblclick(position={"x": 300, "y": 60})
    expect(timeline).to_have_attribute("data-range", RANGE, timeout=8_000)


def test_an_exporter_without_engines_says_how_to_attach_one(
    sites: dict[str, str], visit: Open
) -> None:
    page = visit(sites["empty"], theme="dark")
    expect(page.get_by_text("No engine is attached")).to_be_visible(timeout=15_000)
    expect(page.get_by_text("BATCHSCOPE=1").first).to_be_visible()
    page.get_by_role("link", name="Iterations").click()
    expect(page.get_by_text("No engine is attached")).to_be_visible(timeout=15_000)
