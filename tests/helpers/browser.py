"""A headless Chromium for tests that must see a page as a reader does; absent, such tests skip and say so.

Used as a context manager so that any test can open any page:

    with chromium(tmp_path) as browser:
        page = browser.open(report_path)
        assert page.errors == []
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True)
class Page:
    """What opening a page brought to light."""

    url: str
    errors: tuple[str, ...]
    requests: tuple[str, ...]


_END = "the test has seen enough"
_HANGS = 3600
"""Seconds without an answer that count as hanging: a busy machine answers late."""


class Browser:
    """One Chromium with its logs: `driver` is Selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, width: int = 1280, height: int = 900) -> Page:
        """Opens a local file at a viewport of `width` x `height` CSS pixels; reports errors and requests."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        url = path.resolve().as_uri()
        self.driver.get(url)
        errors = self._complaints()
        events = (json.loads(e["message"])["message"] for e in self.driver.get_log("performance"))
        sent = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        requests = tuple(u for u in sent if not u.startswith("data:"))
        return Page(url, errors, requests)

    def prefer(self, scheme: str) -> None:
        """Makes pages think that their reader prefers `light` or `dark` ones."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def unfold(self) -> None:
        """Opens what the page has folded."""
        self.run("for (const part of document.querySelectorAll('details')) part.open = true")

    def _complaints(self) -> tuple[str, ...]:
        """What the page's console has, which comes late but in order: all before a line of our own."""
        self.driver.execute_script("console.error(arguments[0])", _END)
        found = list[str]()
        until = time.monotonic() + _HANGS
        while not any(_END in line for line in found):
            if time.monotonic() > until:
                raise TimeoutError("the browser's console does not answer")
            found += [e["message"] for e in self.driver.get_log("browser")]
        return tuple(line for line in found if _END not in line)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript function body in the page (the debugger's, not the page's)."""
        return self.driver.execute_script(script, *arguments)

    def screenshot(self, path: Path) -> None:
        """The whole page, not only what the window shows, as a PNG."""
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> int:
        """The page as it prints on A4; returns the number of its pages."""
        made = self.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
        path.write_bytes(data := base64.b64decode(made["data"]))
        return len(re.findall(rb"/Type /Page\b(?!s)", data))

    def front_pages(self, path: Path) -> int:
        """The number of printed pages of a report's front page alone."""
        self.run("for (const s of document.querySelectorAll('main > :not(#summary), footer')) s.remove()")
        return self.pdf(path)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile below `profile`; skips the test where Chromium or its driver is absent."""
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    binary, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver_path is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = Options()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile / 'chromium'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(driver_path))
    try:
        driver.command_executor.client_config.timeout = _HANGS
        driver.set_script_timeout(_HANGS)
        driver.set_page_load_timeout(_HANGS)
        driver.get("about:blank")  # or Chromium's own first page may still load while a test listens
        yield Browser(driver)
    finally:
        driver.quit()


def axe(browser: Browser, part: str = "html") -> list[dict[str, Any]]:
    """What axe-core finds wrong in a part of the open page (a selector): `id`, `impact` and the first `nodes`.

    Drawings are left out: their contrast is between shapes, which it cannot judge.
    """
    package = pytest.importorskip("axe_playwright_python")
    browser.run((Path(package.__file__).parent / "axe.min.js").read_text("utf-8"))
    found: list[dict[str, Any]] = browser.driver.execute_async_script(
        "const [part, done] = arguments; axe.run({include: [[part]], exclude: [['svg']]},"
        "{resultTypes: ['violations']}).then(r => done(r.violations.map(v => "
        "({id: v.id, impact: v.impact, nodes: v.nodes.slice(0, 3).map(n => n.html)}))))",
        part,
    )
    return found
