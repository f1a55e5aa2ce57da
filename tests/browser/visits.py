"""Visits of pages in a real browser: what it complains of, what axe says of them, and pictures of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response, ViewportSize, expect

from tests.waiting import PATIENCE_S, until

# Where `make test` leaves the pictures.
PICTURES = Path(__file__).resolve().parents[2] / "build" / "screenshots"
DESKTOP, TELEPHONE = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)
# Of every page: the name, the colours and the size.
LOOKS: tuple[tuple[str, Literal["light", "dark"], ViewportSize], ...] = (
    ("light", "light", DESKTOP),
    ("dark", "dark", DESKTOP),
    ("telephone", "light", TELEPHONE),
)
GRAVE = {"serious", "critical"}
MAX_TRANSFER = 1_000_000
expect.set_options(timeout=1000 * PATIENCE_S)
SCROLLED_TABLES = """[...document.querySelectorAll("table")].filter(
  table => table.parentElement.scrollWidth > table.parentElement.clientWidth
).map(table => table.parentElement.getAttribute("aria-label"))"""


OVERFLOWING_CELLS = """[...document.querySelectorAll("[role=table] > tbody > tr > *")].filter(
  cell => cell.scrollWidth > cell.clientWidth + 1
).map(cell => cell.textContent.trim())"""


@dataclass
class Visits:
    """A tab at the address of a service. ``complaints`` are console errors, exceptions of scripts, requests that
    failed, and pages of more than MAX_TRANSFER bytes, but for those that hold one of ``tolerated``, whenever they come;
    a test that expects one takes it out. ``transferred`` are the bytes of the page and of all that it has fetched
    since, whether the browser had them already or not."""

    context: BrowserContext
    tab: Page
    complaints: list[str] = field(default_factory=list)
    tolerated: tuple[str, ...] = ()
    transferred: int = 0
    page: str = ""

    @classmethod
    def begin(cls, browser: Browser, url: str) -> Visits:
        context = browser.new_context(base_url=url, viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
        context.set_default_timeout(1000 * PATIENCE_S)
        visits = cls(context, context.new_page())
        visits.tab.on("console", visits._on_console)
        visits.tab.on("pageerror", lambda error: visits._complain(f"exception: {error}"))
        visits.tab.on("requestfailed", visits._on_failed)
        visits.tab.on("response", visits._on_response)
        # Playwright's own events do not tell the bytes of what has no length in its head, as a stream has none.
        protocol = context.new_cdp_session(visits.tab)
        protocol.on("Network.requestWillBeSent", visits._on_request)
        protocol.on("Network.dataReceived", visits._on_data)
        protocol.send("Network.enable")
        return visits

    def open(self, path: str) -> Page:
        """Open a page and wait until it is loaded."""
        answer = self.tab.goto(path, wait_until="load")
        assert answer is not None
        assert answer.ok, f"{path}: {answer.status} {answer.text()[:400]}"
        return self.tab

    def check(self, name: str) -> None:
        """Assert that the page as it is now has no grave fault in light, dark and on a telephone, that no table
        scrolls sideways, and on a telephone no cell's content lies over the next one's, and keep pictures of it as
        ``name``."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        for look, scheme, size in LOOKS:
            self.tab.emulate_media(color_scheme=scheme)
            self.tab.set_viewport_size(size)
            self.tab.screenshot(path=PICTURES / f"{name}.{look}.png", full_page=True)
            self._assert_accessible(f"{name}, {look}")
            wide = self.tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{name}, {look}: the page is {wide} pixels wider than the window"
            scrolled = self.tab.evaluate(SCROLLED_TABLES)
            assert not scrolled, f"{name}, {look}: these tables scroll sideways: {', '.join(scrolled)}"
            if size is TELEPHONE:
                overflowing = self.tab.evaluate(OVERFLOWING_CELLS)
                assert not overflowing, f"{name}, {look}: these cells are too narrow: {', '.join(overflowing)}"
        self.tab.emulate_media(color_scheme="light")
        self.tab.set_viewport_size(DESKTOP)

    def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds, while what the browser tells is taken in."""
        until(condition, lambda: self.tab.wait_for_timeout(10))

    def expect_complaint(self, part: str) -> None:
        """Wait until the browser has complained of something that holds ``part``, and take that out."""
        self.until(lambda: any(part in complaint for complaint in self.complaints))
        self.complaints[:] = [complaint for complaint in self.complaints if part not in complaint]

    def end(self) -> None:
        self._weigh()
        self.context.close()

    def _assert_accessible(self, what: str) -> None:
        results = Axe().run(self.tab)
        grave = [fault for fault in results.response["violations"] if fault["impact"] in GRAVE]
        told = [f"{fault['id']}: {fault['help']}: {node['html'][:200]}" for fault in grave for node in fault["nodes"]]
        assert not grave, f"{what}: " + "\n".join(told[:10])

    def _complain(self, complaint: str) -> None:
        if not any(part in complaint for part in self.tolerated):
            self.complaints.append(complaint)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complain(f"{message.type}: {message.text}")

    def _on_failed(self, request: Request) -> None:
        # A stream or a page that is left while it loads is no fault.
        if request.failure != "net::ERR_ABORTED":
            self._complain(f"failed: {request.url}: {request.failure}")

    def _on_response(self, response: Response) -> None:
        own = re.match(r"https?://127\.0\.0\.1:\d+/|data:", response.url)
        if own is None:
            self._complain(f"from elsewhere: {response.url}")

    def _on_request(self, event: dict[str, Any]) -> None:
        # Of a document that becomes the page both are the same; what it fetches has the page as its loader.
        if event["type"] == "Document" and event["requestId"] == event["loaderId"]:
            self._weigh()
            self.page, self.transferred = event["documentURL"], 0

    def _on_data(self, event: dict[str, Any]) -> None:
        self.transferred += event["dataLength"]

    def _weigh(self) -> None:
        if self.transferred > MAX_TRANSFER:
            self._complain(f"{self.page} transferred {self.transferred} bytes")
