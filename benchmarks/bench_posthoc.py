"""Calibrators and conformal sets against probmetrics, scikit-learn, netcal, MAPIE and TorchCP, on the same rows.

    pip install probmetrics==1.3.0 pytorch-minimize numba netcal==1.4.0 mapie==1.6.0 torchcp==1.2.1
    python benchmarks/bench_posthoc.py                              scikit-learn models on its own data
    python benchmarks/bench_posthoc.py --sets FOLDER --splits 3     also the prediction sets of a folder
    python benchmarks/bench_posthoc.py --sets FOLDER --write        put the table into docs/guide/calibration.md
    python benchmarks/bench_posthoc.py --half fresh --write         the same for further sets that nobody has looked at
    python benchmarks/bench_posthoc.py --variants                   settings of `auto`, on the half for choosing
    python benchmarks/bench_posthoc.py --speed 50000 1000           seconds of the fits on synthetic logits
    python benchmarks/bench_posthoc.py --auto-speed                 seconds of `auto` in units of one temperature fit
    python benchmarks/bench_posthoc.py --conformal                  the conformal sets alone; also with --speed
    python benchmarks/bench_posthoc.py --coverage 1000              coverage of our sets over random splits

The half of a set follows from the name of its data (CRC-32, even: choose, odd: report). Defaults of `auto` are chosen
on the first half, and the table is of the second. Seconds are CPU seconds of one thread, so that a busy machine does
not change them much. Peers that are not installed are left out. posthoc_conformal.py has the conformal sets;
`--conformal` runs them alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import posthoc_conformal
import posthoc_speed
import torch
from posthoc_sets import PredictionSet, folder_sets, fresh_sets, nll, scikit_learn_sets, softmax

from avuc.calibration import CALIBRATORS, AutoCalibrator

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "calibration.md"
OURS = (
    "temperature",
    "smoothed",
    "ets",
    "vector",
    "structured-vector",
    "matrix",
    "dirichlet",
    "isotonic",
    "venn-abers",
)
# the same method in probmetrics
PEERS = {"temp-scaling": "temperature", "ts-mix": "smoothed", "isotonic": "isotonic", "svs": "structured-vector"}
PEERS |= {"sms": "matrix", "logistic": ""}
# a matrix takes time in rows × classes²
MOST_PAIRWISE = 100
PAIRWISE = ("matrix", "dirichlet", "sms", "logistic")
# largest difference of the test NLL that counts as equal
SAME = 2e-3
# of fewer rows all may be right; then T is at the end of its range, and the ranges differ
EQUAL_ROWS = 500

Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=Path, help="folder of prediction sets")
    parser.add_argument("--splits", type=int, default=1, help="random splits of each scikit-learn data set (default 1)")
    parser.add_argument(
        "--half", choices=("choose", "report", "both", "fresh"), default="report", help="(default report)"
    )
    parser.add_argument("--without", nargs="+", default=[], metavar="METHOD", help="methods of ours to leave out")
    parser.add_argument("--variants", action="store_true", help="compare settings of auto on the half for choosing")
    parser.add_argument("--speed", type=int, nargs=2, metavar=("ROWS", "CLASSES"), help="only the time of fits")
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds of one fit with --speed (default 120)")
    parser.add_argument("--auto-speed", action="store_true", help="only the time of auto, for many sizes")
    parser.add_argument("--conformal", action="store_true", help="conformal sets only")
    parser.add_argument("--coverage", type=int, metavar="SPLITS", help="only the coverage of conformal sets")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--json", type=Path, help="file for all figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.coverage:
        print(posthoc_conformal.coverage(options.coverage))
        return
    if options.auto_speed:
        text = posthoc_speed.auto_table()
        print(text)
        if options.write:
            write(f"{text}{made()}", "posthoc-auto")
        return
    if options.speed:
        if not options.conformal:
            probmetrics = {name: peer(name) for name in PEERS} if importlib.util.find_spec("probmetrics") else {}
            text = posthoc_speed.peer_table(*options.speed, OURS, PEERS, probmetrics, options.limit)
            if options.write:
                write(f"{text}{made()}", "posthoc-speed")
        posthoc_conformal.speed(*options.speed)
        return
    half = "choose" if options.variants else options.half
    found = [
        *(fresh_sets if half == "fresh" else scikit_learn_sets)(options.splits),
        *(folder_sets(options.sets) if options.sets else ()),
    ]
    sets = [one for one in found if half in (one.half, "both", "fresh")]
    if options.conformal:
        print(posthoc_conformal.figures(sets))
        return
    results: dict[str, dict[str, float]] = {}
    for one in sets:
        fits = variants() if options.variants else {**ours(one, options.without), **peers(one)}
        results[one.name] = {"none": nll(softmax(one.test_logits), one.test_labels), **figures(one, fits)}
        print(one.name, one.val_logits.shape, {k: round(v, 4) for k, v in results[one.name].items()}, flush=True)
    text = table(sets, results)
    print(text)
    if not options.variants:
        many = {one.name for one in sets if len(one.val_labels) >= EQUAL_ROWS}
        print(equal({name: one for name, one in results.items() if name in many}))
        print(posthoc_conformal.figures(sets))
    if options.json:
        options.json.write_text(json.dumps({"versions": versions(), "nll": results}, indent=1))
    if options.write:
        write(text, "posthoc-fresh" if half == "fresh" else "posthoc")


def write(text: str, mark: str) -> None:
    """Put a text between the marks of the page."""
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    PAGE.write_text(f"{before}{begin}{text}{end}{rest.split(end)[1]}", encoding="utf-8")


def figures(one: PredictionSet, fits: dict[str, Fit]) -> dict[str, float]:
    """Return the test NLL of each method; a method that fails is left out."""
    result = {}
    for name, fit in fits.items():
        try:
            result[name] = nll(fit(one.val_logits, one.val_labels)(one.test_logits), one.test_labels)
        except Exception as error:  # a peer may refuse rows
            print(f"{one.name}: {name}: {str(error)[:100]}", file=sys.stderr)
    return result


def own(make: Callable[[], object]) -> Fit:
    def fit(logits: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        fitted = make().fit(logits, labels)  # type: ignore[attr-defined]
        return lambda rows: softmax(fitted.transform(rows))

    return fit


def ours(one: PredictionSet, without: Sequence[str] = ()) -> dict[str, Fit]:
    many = one.val_logits.shape[1] > MOST_PAIRWISE
    names = [name for name in OURS if name not in without and not (many and name in PAIRWISE)]
    return {"auto": own(AutoCalibrator), **{name: own(CALIBRATORS[name]) for name in names}}


def peer(name: str) -> Fit:
    from probmetrics.calibrators import get_calibrator

    def fit(logits: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        options = {f"{name}_print_init_info": False} if name in ("svs", "sms") else {}
        fitted = get_calibrator(name, **options).fit(softmax(logits), labels)
        return lambda rows: np.asarray(fitted.predict_proba(softmax(rows)))

    return fit


def peers(one: PredictionSet) -> dict[str, Fit]:
    if importlib.util.find_spec("probmetrics") is None:
        return {}
    many = one.val_logits.shape[1] > MOST_PAIRWISE
    return {f"probmetrics {name}": peer(name) for name in PEERS if not (many and name in PAIRWISE)}


def variants() -> dict[str, Fit]:
    from avuc.calibration.auto import CANDIDATES

    lists = {
        "default": None,
        "matrix first": CANDIDATES,
        "simplest first": CANDIDATES[::-1],
        "all": ("temperature", "smoothed", "ets", "structured-vector", "vector", "matrix", "isotonic"),
        "temperatures": ("temperature", "smoothed", "ets"),
    }
    return {
        f"{name}, {folds} folds, {errors:g} SE": own(
            lambda listed=listed, folds=folds, errors=errors: AutoCalibrator(
                listed, folds=folds, standard_errors=errors
            )
        )
        for name, listed in lists.items()
        for folds, errors in ((5, 1.0), (5, 0.0), (3, 1.0))
        if name == "default" or (folds, errors) == (5, 1.0)
    }


def table(sets: list[PredictionSet], results: dict[str, dict[str, float]]) -> str:
    """Return the mean test NLL of each method for each data set; methods are sorted by the mean over all sets."""
    seen = [one for one in sets if not one.unseen]
    columns = {data: [one.name for one in seen if one.data == data] for data in dict.fromkeys(o.data for o in seen)}
    columns["**mean of all sets**"] = [one.name for one in seen]
    if other := [one.name for one in sets if one.unseen]:
        columns["test rows shifted"] = other
    methods = list(dict.fromkeys(key for one in results.values() for key in one))

    def mean(method: str, names: list[str]) -> float:
        values = [results[name].get(method, np.nan) for name in names]
        return float(np.mean(values))

    order = sorted(
        methods,
        key=lambda m: (np.isnan(mean(m, columns["**mean of all sets**"])), mean(m, columns["**mean of all sets**"])),
    )
    lines = [f"| mean test NLL | {' | '.join(f'{data} ({len(names)})' for data, names in columns.items())} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for method in order:
        cells = [f"{mean(method, names):.4f}" for names in columns.values()]
        lines.append(f"| {method} | {' | '.join('–' if cell == 'nan' else cell for cell in cells)} |")
    lines.append("")
    single = [name for name in order if name.startswith("probmetrics")]
    if single and "auto" in order:
        both = [[results[one.name][name] for one in seen] for name in ("auto", single[0])]
        change = np.subtract(*both)
        reach = 1.96 * change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else np.inf
        lines.append(
            f"`auto` − best single method of probmetrics ({single[0].split()[1]}): {change.mean():+.4f}, 95 % interval "
            f"over {len(change)} sets {change.mean() - reach:+.4f} to {change.mean() + reach:+.4f}; lower in "
            f"{int((change < -1e-4).sum())}, equal within 0.0001 in {int((abs(change) <= 1e-4).sum())}, higher in "
            f"{int((change > 1e-4).sum())} sets. Goal (mean at most that of probmetrics): "
            f"{'met' if change.mean() <= 0 else 'GOAL MISSED'}."
        )
    return "\n".join([*lines, made()])


def made() -> str:
    return f"{datetime.date.today():%d %B %Y}, {os.cpu_count()} cores, {versions()}.\n"


def versions() -> str:
    found = []
    for name in ("avuc", "torch", "scikit-learn", "probmetrics", "netcal", "mapie", "torchcp"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def equal(results: dict[str, dict[str, float]]) -> str:
    """Return the largest difference of the test NLL to the same method of probmetrics."""
    lines = []
    for name, same in PEERS.items():
        pairs = [
            (one[same], one[f"probmetrics {name}"])
            for one in results.values()
            if {same, f"probmetrics {name}"} <= set(one)
        ]
        if pairs:
            largest = max(abs(a - b) for a, b in pairs)
            verdict = "" if largest <= SAME else " DIFFERENT"
            lines.append(f"{same} = probmetrics {name}: largest difference of NLL {largest:.2e}{verdict}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
