"""The dashboard as a person first sees it, in a real browser where there is one."""

from __future__ import annotations

import os

from playwright.sync_api import expect, sync_playwright
from tests.dashboard.processes import wait_for
from tests.dashboard.test_pages import CHROMIUM, FLAGS


def live_page(url: str, *, seconds: float) -> None:
    """Until the first page says that an engine is live and shows its figures. Without a browser
    nothing is seen, which only a machine that isn't the gate may get away with.
    """
    if CHROMIUM is None and os.environ.get("CI") != "true":
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        wait_for(f"{url}/_stcore/health")
        page.goto(url)
        board = page.locator(".board")
        expect(board.locator(".status.live")).to_contain_text("Live", timeout=seconds * 1e3)
        assert "NaN" not in board.inner_text()
        browser.close()
