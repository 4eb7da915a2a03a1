"""A real browser, driven over its debugging pipe; no package is needed for that."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
FLAGS += ["--remote-debugging-pipe", "--no-first-run", "--force-color-profile=srgb", "--disable-background-networking"]
PATIENCE = 60.0
# moves the ends of two pipes to where Chromium looks for them: above the low numbers first, for they may lie there
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 100) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Chromium's DevTools protocol: JSON texts ended by a zero byte, on file descriptors 3 and 4."""

    def __init__(self, binary: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read_end, self.out = os.pipe()
        self.inp, write_end = os.pipe()
        arguments = [binary, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"]
        command = [sys.executable, "-c", LAUNCH, str(read_end), str(write_end), *arguments]
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
        self.js(
            f"{{const e = byId({identity!r}); e.value = {json.dumps(str(value))}; "
            f"e.dispatchEvent(new Event({kind!r}, {{bubbles: true}}))}}"
        )
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


RECIPE = """
[study]
name = {name}
seeds = {seeds}
samples = 8
shifts = {shifts}
severities = {severities}
ood = ["photographs"]

[data]
source = "mnist5k"

[net]
name = "mlp"
"""
HOSTILE = ("Vanilla", "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script> & $x$ _y_ \\ %%title%%")
CLASSES = ("cat", "<b>dog</b>", "</script><script>alert(3)</script>", "bird\u2028")


class SyntheticStudy:
    """A store with the structure of a real one: real predictions of made-up logits, judged and kept by the study."""

    shifts = ("gaussian_noise", "contrast", "fog")

    def __init__(
        self, folder: Path, methods=HOSTILE, *, seeds=(0, 1), severities=(1, 5), name="<i>study</i>", rows=160
    ):
        from avuc.study.recipe.load import parse_recipe
        from avuc.study.store.store import Store

        self.severities, self.rows = severities, 160
        text = RECIPE.format(
            name=json.dumps(name), seeds=list(seeds), shifts=list(self.shifts), severities=list(severities)
        )
        for place, method in enumerate(methods):
            text += f"\n[[methods]]\nname = {json.dumps(method)}\n"
            if place == 1:  # shares the first one's model
                text += f'of = {json.dumps(methods[0])}\ncalibrator = "temperature"\n'
            elif place:
                text += f'method = "svi"\nobjective = {{ kind = "avuc", beta = {place}.0 }}\n'
            else:
                text += 'method = "vanilla"\n'
        folder.mkdir(parents=True, exist_ok=True)
        self.store = Store(folder)
        self.recipe = parse_recipe(text)
        self.store.adopt(self.recipe)
        about = {"versions": {}, "revision": None, "hardware": {}}
        self.store.begin(engine="local", device="cpu", recipe=self.recipe, about=about)
        for place, row in enumerate(self.recipe.methods):
            for seed in seeds:
                self._train(row, seed)
                self._judge(place, row, seed)
        self.store.finish(12.0)
        self.store.close()

    def _train(self, row, seed):
        from avuc.study.grid import ModelKey
        from avuc.study.store.store import Trained

        if row.method is None:
            return
        history = [
            {"member": 0, "epoch": e, "nll": 1 / (e + 1), "accuracy": 1 - 0.5 / (e + 1), "avuc": 0.1 * len(row.of)}
            for e in range(6)
        ]
        self.store.add_model(Trained(ModelKey(row.name, seed), history, 6, 1.0, 0.5))

    def _judge(self, place, row, seed):
        import torch

        from avuc.data import UNLABELLED, Dataset
        from avuc.predictions import Predictions
        from avuc.study.evaluation.coverage import conformal_curve
        from avuc.study.evaluation.examples import examples_of, thumbnail
        from avuc.study.evaluation.judge import judge
        from avuc.study.grid import CLEAN, VALIDATION, Plan
        from avuc.study.store.store import Evaluation

        generator = torch.Generator().manual_seed(1000 * seed + place)
        clean_entropy, fits = None, None
        for test_set in Plan(self.recipe).sets:
            labels = torch.randint(len(CLASSES), (self.rows,), generator=generator)
            scale = [4.0, 2.0, 1.5][place % 3]
            logits = torch.randn(self.rows, len(CLASSES), generator=generator)
            logits[torch.arange(self.rows), labels] += 2.2 - 0.3 * test_set.severity - 2.2 * test_set.outside
            if test_set.outside:
                labels = torch.full_like(labels, UNLABELLED)
            found = Predictions.from_logits(logits * scale, labels)
            images = torch.randint(256, (self.rows, 8, 8, 3), dtype=torch.uint8, generator=generator)
            data = Dataset(images, labels, len(CLASSES), str(test_set), CLASSES)
            told = judge(
                found,
                threshold=None if test_set == VALIDATION else 0.5,
                bins=15,
                clean_entropy=None if test_set in (VALIDATION, CLEAN) else clean_entropy,
            )
            clean_entropy = told.entropy if test_set == CLEAN else clean_entropy
            told.curves.update(conformal_curve(found, test_set, fits, CLASSES))
            fits = told.curves["conformal"]["fits"] if test_set == VALIDATION else fits
            kept = test_set == CLEAN or 0 < test_set.severity == max(self.severities)
            text = None
            if test_set == VALIDATION and row.calibrator is not None:
                text = row.calibrator.make().fit(logits * scale, labels).to_json()
                told.metrics["temperature"] = json.loads(text)["learned"]["temperature"]
            shown = examples_of(found, data, 15) if kept else None
            picture = None if test_set == VALIDATION else thumbnail(images[0])
            self.store.add_evaluations(
                [Evaluation(row.name, seed, test_set, told, 0.1, text, test_set == CLEAN, shown, picture)]
            )


@pytest.fixture(scope="session")
def synthetic_study():
    return SyntheticStudy


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    SyntheticStudy(folder)
    return folder


@pytest.fixture(scope="session")
def results(study_folder):
    return results_of(study_folder)


def results_of(folder):
    from avuc.report.study.results import read_results
    from avuc.study.store.store import Store

    store = Store(folder, create=False)
    try:
        return read_results(store)
    finally:
        store.close()


@pytest.fixture(scope="session")
def page_file(results, tmp_path_factory):
    from avuc.report.study.page import write_study_page

    path = tmp_path_factory.mktemp("page") / "report.html"
    write_study_page(results, path)
    return path
