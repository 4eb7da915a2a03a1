"""Make the screenshots of this folder from the report of a study:

python docs/demo-report/make.py REPORT.html
"""

from __future__ import annotations

import base64
import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent
BROWSER = HERE.parents[1] / "tests" / "report" / "conftest.py"
# name: width, height, dark mode, CSS selector of the element at the top
SHOTS = {
    "top": (1280, 1240, False, "h1"),
    "maps": (1280, 1240, False, "#explore"),
    "confidence": (1280, 1400, False, "#thresholds"),
    "avu-explorer": (1280, 900, False, "#avu"),
    "dark": (1280, 1240, True, "#intensity"),
    "phone": (390, 844, False, "h1"),
    "phone-dark": (390, 844, True, "#avu"),
}


def main() -> None:
    spec = importlib.util.spec_from_file_location("browser", BROWSER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    browser = module.Browser(module.CHROMIUM)
    try:
        for name, (width, height, dark, selector) in SHOTS.items():
            page = module.Page(browser, width, height, dark=dark)
            page.open(Path(sys.argv[1]))
            top = page.js(f"document.querySelector('{selector}').getBoundingClientRect().top + scrollY - 16")
            clip = {"x": 0, "y": max(0, top), "width": width, "height": height, "scale": 1}
            data = page.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
            (HERE / f"{name}.png").write_bytes(base64.b64decode(data))
            page.close()
    finally:
        browser.close()


if __name__ == "__main__":
    main()
