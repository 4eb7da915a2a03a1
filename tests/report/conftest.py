"""A real browser, driven over its debugging pipe; no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
FLAGS += ["--remote-debugging-pipe", "--no-first-run", "--force-color-profile=srgb", "--disable-background-networking"]
PATIENCE = 60.0


class Browser:
    """Chromium's DevTools protocol: JSON texts ended by a zero byte, on file descriptors 3 and 4."""

    def __init__(self, binary: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_end, self.out = os.pipe()
        self.inp, write_end = os.pipe()
        # the shell moves the pipe's ends to where Chromium looks for them
        line = f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}'
        command = ["sh", "-c", line, binary, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(read_end, write_end), **quiet)
        os.close(read_end)
        os.close(write_end)
        self.number, self.buffer, self.events = 0, b"", []

    def send(self, method: str, session: str | None = None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        wanted, end = self.number, time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self._read(end)
            if found.get("id") == wanted:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            self.events.append(found)
        raise AssertionError(f"no answer to {method}")

    def _read(self, end: float):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.inp], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self.inp, 1 << 16)
            assert part, "the browser has gone"
            self.buffer += part
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.out)
        os.close(self.inp)
        self.profile.cleanup()


class Page:
    """One tab; remembers every request and every complaint."""

    def __init__(self, browser: Browser, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        self.browser = browser
        browser.events.clear()
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def send(self, method: str, **params):
        return self.browser.send(method, self.session, **params)

    def open(self, path: Path) -> Page:
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.until("document.documentElement.dataset.ready !== undefined && stale.size === 0")
        return self

    def js(self, expression: str):
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
            if found["result"].get("value") is True:
                return
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; {self.complaints()}")

    def settled(self) -> None:
        self.until("stale.size === 0")

    def choose(self, identity: str, value) -> None:
        """What a person does with a select, a slider or a box."""
        kind = "input" if self.js(f"byId({identity!r}).type === 'range'") else "change"
        self.js(f"{{const e = byId({identity!r}); e.value = {json.dumps(str(value))}; "
                f"e.dispatchEvent(new Event({kind!r}, {{bubbles: true}}))}}")
        self.settled()

    def key(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = codes[key]
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def complaints(self) -> list[str]:
        """Console errors and warnings, uncaught exceptions, violations of the page's own policy."""
        out = []
        for event in self._mine():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                out.append(json.dumps(params["exceptionDetails"])[:500])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                out.append(json.dumps(params["args"])[:500])
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                out.append(params["entry"]["text"])
        return out

    def requests(self) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self._mine() if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def _mine(self):
        self.js("0")  # whatever is still in the pipe comes before this answer
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def picture(self, path: Path, *, full: bool = True) -> None:
        data = self.send("Page.captureScreenshot", captureBeyondViewport=full)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self.browser.send("Target.closeTarget", targetId=self.target)


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs a Chromium binary and this machine has none (apt-get install -y chromium)")
    opened = Browser(CHROMIUM)
    yield opened
    opened.close()


@pytest.fixture
def new_page(browser):
    pages = []

    def make(path: Path, **options) -> Page:
        page = Page(browser, **options)
        pages.append(page)
        return page.open(path)

    yield make
    for page in pages:
        page.close()
