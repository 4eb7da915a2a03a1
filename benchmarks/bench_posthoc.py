"""Calibrators and conformal sets against probmetrics, scikit-learn, netcal, MAPIE and TorchCP, on the same rows.

    pip install probmetrics==1.3.0 pytorch-minimize numba netcal==1.4.0 mapie==1.6.0 torchcp==1.2.1
    python benchmarks/bench_posthoc.py                              scikit-learn models on its own data
    python benchmarks/bench_posthoc.py --sets FOLDER --splits 3     also the prediction sets of a folder
    python benchmarks/bench_posthoc.py --sets FOLDER --record       keep the figures in benchmarks/results
    python benchmarks/bench_posthoc.py --half fresh --record        the same for a second collection, only for reporting
    python benchmarks/bench_posthoc.py --half third --tables FOLDER a third collection, see posthoc_tables.py
    python benchmarks/bench_posthoc.py --write                      put tables of what is kept into the page; no fits
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
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import posthoc_conformal
import posthoc_rows
import posthoc_speed
import torch
from posthoc_rows import MARKS, PAGE, Row, made
from posthoc_sets import PredictionSet, folder_sets, fresh_sets, scikit_learn_sets, softmax
from posthoc_tables import table_sets

from avuc.calibration import CALIBRATORS, AutoCalibrator

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
        "--half", choices=("choose", "report", "both", "fresh", "third"), default="report", help="(default report)"
    )
    parser.add_argument("--tables", type=Path, help="folder of the tables and texts of --half third")
    parser.add_argument("--without", nargs="+", default=[], metavar="METHOD", help="methods of ours to leave out")
    parser.add_argument("--variants", action="store_true", help="compare settings of auto on the half for choosing")
    parser.add_argument("--speed", type=int, nargs=2, metavar=("ROWS", "CLASSES"), help="only the time of fits")
    parser.add_argument("--limit", type=int, default=120, help="CPU seconds of one fit with --speed (default 120)")
    parser.add_argument("--auto-speed", action="store_true", help="only the time of auto, for many sizes")
    parser.add_argument("--conformal", action="store_true", help="conformal sets only")
    parser.add_argument("--coverage", type=int, metavar="SPLITS", help="only the coverage of conformal sets")
    parser.add_argument("--record", action="store_true", help="keep the figures in benchmarks/results")
    parser.add_argument("--write", action="store_true", help=f"put tables of what is kept into {PAGE.name}")
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
    if options.write:
        for half, mark in MARKS.items():
            if posthoc_rows.path(half).exists():
                write(posthoc_rows.page_table(half), mark)
        return
    half = "choose" if options.variants else options.half
    sets = chosen_sets(half, options)
    if options.conformal:
        print(posthoc_conformal.figures(list(sets)))
        return
    rows: list[Row] = []
    for one in sets:
        fits = variants() if options.variants else {**ours(one, options.without), **peers(one)}
        rows += measured(one, fits)
        print(
            one.name, one.val_logits.shape, {r.method: round(r.nll, 4) for r in rows if r.set == one.name}, flush=True
        )
        if options.record:
            posthoc_rows.save(half, rows)
    print(posthoc_rows.nll_table(rows))
    if not options.variants:
        print(posthoc_rows.compared(rows), posthoc_rows.others(rows))
        print(posthoc_rows.equal(rows, PEERS, EQUAL_ROWS, SAME))
    if options.json:
        options.json.write_text(json.dumps({"versions": posthoc_rows.versions(), "rows": rows}, indent=1))


def chosen_sets(half: str, options: argparse.Namespace) -> Iterator[PredictionSet]:
    if half == "third":
        yield from table_sets(options.tables)
        return
    yield from (one for one in trained_sets(half, options.splits) if half in (one.half, "both", "fresh"))
    if options.sets:
        yield from (one for one in folder_sets(options.sets) if half in (one.half, "both", "fresh"))


def trained_sets(half: str, splits: int) -> Iterator[PredictionSet]:
    return fresh_sets(splits) if half == "fresh" else scikit_learn_sets(splits)


def write(text: str, mark: str) -> None:
    """Put a text between the marks of the page."""
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->"
    before, rest = PAGE.read_text(encoding="utf-8").split(begin)
    PAGE.write_text(f"{before}{begin}{text}{end}{rest.split(end)[1]}", encoding="utf-8")


def measured(one: PredictionSet, fits: dict[str, Fit]) -> list[Row]:
    """Return a row for no calibrator and for each method; a method that fails is left out."""
    about = one.name, one.data, *one.val_logits.shape, int(one.unseen)
    result = [Row(*about, "none", *posthoc_rows.figures(softmax(one.test_logits), one.test_labels), 0.0)]
    for name, fit in fits.items():
        try:
            start = time.process_time()
            fitted = fit(one.val_logits, one.val_labels)
            seconds = time.process_time() - start
            result.append(Row(*about, name, *posthoc_rows.figures(fitted(one.test_logits), one.test_labels), seconds))
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
    auto = {"auto": own(AutoCalibrator), "auto, always a mixture": own(lambda: AutoCalibrator(blend=True))}
    return {**auto, **{name: own(CALIBRATORS[name]) for name in names}}


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


if __name__ == "__main__":
    main()
