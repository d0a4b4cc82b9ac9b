"""A headless Chromium with the daemons' page, and what a test asks of it."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

PATIENCE_S = 20


class Browser:
    def __init__(self, profile: pathlib.Path, width: int = 1280, height: int = 900, scale: float = 1) -> None:
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for flag in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
            "disable-component-update", "disable-sync", "disable-dev-shm-usage", "lang=en-GB", "hide-scrollbars",
            f"force-device-scale-factor={scale}", f"user-data-dir={profile}", f"window-size={width},{height}",
        ):  # fmt: skip
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)

    def end(self) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> object:
        return self.driver.execute_script(script, *arguments)

    def until(self, check: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> object:
        """What `check` returns once that is true."""
        ends = time.monotonic() + patience_s
        while True:
            try:
                if found := check():
                    return found
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < ends, f"{what}; the page shows:\n{self.text('body')}"
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """The text of the first such element that is shown; empty without one."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def until_text(self, selector: str, text: str) -> None:
        self.until(lambda: text in self.text(selector), f'"{text}" is not in {selector}')

    def cells(self, table: str) -> list[dict[str, str]]:
        """The rows in view of the table with this label, by the names of their columns."""
        script = """
            const table = document.querySelector(`table[aria-label="${arguments[0]}"]`);
            if (!table) return [];
            const names = [...table.querySelectorAll("thead th")].map((cell) => cell.innerText.replace(/[↑↓]/, "").trim());
            return [...table.querySelectorAll("tbody tr:not(.filler)")].map((row) =>
                [...row.children].map((cell, at) => [names[at], cell.innerText.trim()]));"""
        return [dict(row) for row in self.run(script, table)]  # type: ignore[attr-defined]

    def row(self, table: str, first: str) -> dict[str, str]:
        """The row of this table that begins with this text; empty without one."""
        rows = [row for row in self.cells(table) if next(iter(row.values())) == first]
        return rows[0] if rows else {}

    def press(self, name: str) -> None:
        """Presses the button or follows the link of this name, as screen readers have it."""
        script = """
            const named = [...document.querySelectorAll("button, a, summary")].filter((each) =>
                (each.getAttribute("aria-label") ?? each.innerText).trim() === arguments[0] && !each.disabled);
            return named.at(-1);"""

        def pressed() -> bool:
            button = self.run(script, name)
            if button is None:
                return False
            self.run("arguments[0].scrollIntoView({block: 'center'})", button)
            button.click()  # type: ignore[attr-defined]
            return True

        self.until(pressed, f'no button "{name}"')

    def slide(self, name: str, part: float) -> None:
        """Moves a slider to a part of its range, as dragging it does."""
        script = """
            const slider = document.querySelector(`input[name="${arguments[0]}"]`);
            const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set;
            set.call(slider, Math.round(slider.max * arguments[1]));
            slider.dispatchEvent(new Event("input", { bubbles: true }));"""
        self.run(script, name, part)

    def hosts(self) -> set[str]:
        """The hosts that pages have asked for anything since the last call."""
        hosts = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                url = urlsplit(message["params"].get("request", message["params"])["url"])
                if url.scheme not in ("data", "about", "chrome", "blob"):
                    hosts.add(url.netloc)
        return hosts

    def complaints(self) -> list[str]:
        """What the console said since the last call: errors, and what the policy forbids."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def set_media(self, width: int, height: int, scheme: str = "light") -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
