"""A headless Chromium, and what tests do with it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
)

COPY = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };"
"""Keep what the page copies where a test finds it: a browser without a window has no clipboard."""

NO_CLIPBOARD = """
    // As over plain HTTP from another machine.
    Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true });
    document.addEventListener("copy", () => { window.copied = document.activeElement.value; });
"""

NEEDS_CHROMIUM = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium and chromedriver on the path (apt-get install chromium-driver)",
)


class Browser:
    """A browser on a profile of its own; `close` ends it."""

    def __init__(self, profile: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Any = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        # A look for violations goes over the whole page, which a busy machine is long about.
        self.driver.set_script_timeout(120)

    def open(self, url: str, width: int = 1600, height: int = 900) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        # A fragment alone would not load the page again.
        self.driver.get("about:blank")
        self.driver.get(url)

    def leave(self) -> list[str]:
        """Go away from a page before its server stops; gives what it complained of until then."""
        found = self.errors()
        self.driver.get("about:blank")
        self.errors()  # of what was on its way
        return found

    def colours(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        # In one step: between two, the page may have drawn it anew.
        script = """return [...document.querySelectorAll(arguments[0])]
            .map((each) => each.innerText ?? each.textContent).join("\\n")"""
        return str(self.driver.execute_script(script, selector))

    def visible(self, selector: str) -> bool:
        script = "return [...document.querySelectorAll(arguments[0])].some((each) => each.checkVisibility())"
        return bool(self.driver.execute_script(script, selector))

    def value(self, selector: str) -> str:
        """What a control holds; "" where there is none yet. In one step, as `text`."""
        return str(self.script("return document.querySelector(arguments[0])?.value ?? ''", selector))

    def click(self, selector: str) -> None:
        from selenium.common.exceptions import StaleElementReferenceException

        while True:
            try:
                self.find(selector).click()
                return
            except StaleElementReferenceException:
                # The page has drawn it anew in between: the new one is clicked.
                continue

    def write(self, selector: str, text: str) -> None:
        """Put a text in place of what a control holds, and leave it."""
        from selenium.webdriver.common.keys import Keys

        self.find(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE, text, Keys.TAB)

    def paste(self, selector: str, text: str) -> None:
        """Put a text in place of what a control holds in one step: no part of it is looked for on the way."""
        script = """const control = document.querySelector(arguments[0]);
            control.value = arguments[1];
            control.dispatchEvent(new Event("input"));"""
        self.script(script, selector, text)

    def unfold(self, selector: str) -> None:
        """Open a summary by the keyboard: what still loads above may move it away from under the mouse."""
        self.find(selector).send_keys("\n")

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(selector)).select_by_value(value)

    def options(self, selector: str) -> list[str]:
        """The values that a control lets choose."""
        script = "return [...document.querySelector(arguments[0]).options].map((each) => each.value)"
        found: list[str] = self.script(script, selector)
        return found

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def comes(self, condition: Callable[[], object]) -> None:
        """Wait until something has come about on a page that asks the service only now and then."""

        def nudged() -> object:
            # As when the reader comes back to the page: it asks at once.
            self.script("document.dispatchEvent(new Event('visibilitychange'))")
            time.sleep(0.1)
            return condition()

        until(nudged)

    def offline(self, is_so: bool) -> None:
        """Take the network away, or give it back."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": is_so, **speed})

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def errors(self) -> list[str]:
        """Give what the page has complained of on the console since it was last asked."""
        log = self.driver.get_log("browser")
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]

    def close(self) -> None:
        self.driver.quit()


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until something has come about; a machine that does other things too takes its time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)
