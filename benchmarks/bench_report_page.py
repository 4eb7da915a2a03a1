"""How fast the report of a large study opens: 12 methods × 5 seeds × 97 test sets × every metric, in headless Chromium.

    python benchmarks/bench_report_page.py [FOLDER]

Makes a synthetic study of that size (noise around a trend, with the structure of a real study), writes the page, opens
it and changes each control. Prints how long a reader waits.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from avuc.metrics import METRICS
from avuc.report.study.page import write_study_page
from avuc.report.study.results import read_results
from avuc.study.grid import CLEAN, VALIDATION, Plan
from avuc.study.recipe.load import parse_recipe
from avuc.study.store.records import MetricsAndCurves
from avuc.study.store.store import Evaluation, Store

METHODS, SEEDS, BINS = 12, 5, 50
FRAME = "await new Promise(requestAnimationFrame);"
DETECTION = ("auroc", "aupr_in", "aupr_out", "detection_accuracy", "fpr95", "wasserstein")


def fill(folder: Path) -> None:
    text = f'[study]\nname = "large"\nseeds = {list(range(SEEDS))}\n'
    text += 'ood = ["a.npy", "b.npy", "c.npy", "d.npy", "e.npy", "f.npy", "g.npy", "h.npy", "i.npy", "j.npy", '
    text += '"k.npy", "l.npy", "m.npy", "n.npy", "o.npy"]\n[data]\nsource = "cifar10"\n[net]\nname = "resnet20"\n'
    for n in range(METHODS):
        text += f'[[methods]]\nname = "Method {n}"\nmethod = "vanilla"\n'
    recipe, rng = parse_recipe(text), np.random.default_rng(0)
    sets = [test_set for test_set in Plan(recipe).sets if test_set != VALIDATION]
    assert len(sets) == 96  # and the validation set
    store = Store(folder)
    store.adopt(recipe)
    store.begin(engine="local", device="cpu", recipe=recipe, about={"versions": {}, "revision": None, "hardware": {}})
    for n in range(METHODS):
        for seed in range(SEEDS):
            store.add_evaluations(
                Evaluation(
                    f"Method {n}", seed, one, _result(rng, one.severity, outside=one.outside, clean=one == CLEAN)
                )
                for one in sets
            )
    store.finish(1.0)
    store.close()


def _result(rng: np.random.Generator, severity: int, *, outside: bool, clean: bool) -> MetricsAndCurves:
    names = () if outside else tuple(METRICS)
    names += () if clean else DETECTION
    values = {name: float(np.clip(0.1 + 0.1 * severity + 0.05 * rng.normal(), 0, 1)) for name in names}
    groups = ("outside",) if outside else ("right", "wrong")
    curves = {
        name: {"low": 0.0, "high": high, **{g: rng.poisson(100, BINS).tolist() for g in groups}}
        for name, high in (("entropy", 2.3026), ("confidence", 1.0))
    }
    if not outside:
        for name in ("reliability", "uncertainty"):
            stated = ((np.arange(15) + 0.5) / 15).tolist()
            observed = np.clip(np.array(stated) + 0.1 * rng.normal(size=15), 0, 1).round(4).tolist()
            curves[name] = {"rows": rng.poisson(600, 15).tolist(), "stated": stated, "observed": observed}
    return MetricsAndCurves(values, curves, np.zeros(0, np.float32), 10_000, 128)


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = given or Path(temporary)
        if not (folder / "study.sqlite").exists():
            folder.mkdir(parents=True, exist_ok=True)
            fill(folder)
        began = time.perf_counter()
        store = Store(folder, create=False)
        results = read_results(store)
        store.close()
        page = folder / "report.html"
        write_study_page(results, page)
        count = sum(int(np.isfinite(values).sum()) for values in results.values.values())
        print(f"{count:,} values; written in {time.perf_counter() - began:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
        for line in measure(page):
            print(line)


def measure(page_file: Path) -> list[str]:
    path = Path(__file__).parents[1] / "tests" / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.CHROMIUM is None:
        return ["Chromium is not installed, so the page was not opened (apt-get install -y chromium)"]
    browser = module.Browser(module.CHROMIUM)
    try:
        page = module.Page(browser)
        page.open(page_file)
        ready = int(page.js("document.documentElement.dataset.ready"))
        paint = page.js("Math.round(performance.getEntriesByName('first-contentful-paint')[0].startTime)")
        out = [
            f"first paint {paint} ms, controls work after {ready} ms, every chart drawn after "
            f"{page.js('Math.round(window.allDrawn)')} ms"
        ]
        for name, value in (("metric", "nll"), ("severity", "3"), ("shift", "fog")):
            page.js("byId('controls').scrollIntoView()")
            time.sleep(0.3)  # until the page knows which charts are in view
            change = f"const e = byId('{name}'); e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change'));"
            code = f"(async () => {{ const t = performance.now(); {change} {FRAME} return performance.now() - t; }})()"
            out.append(f"{name} → {value}: charts in view are drawn again after {page.js(code):.0f} ms")
            page.settled()
        return out
    finally:
        browser.close()


if __name__ == "__main__":
    main()
