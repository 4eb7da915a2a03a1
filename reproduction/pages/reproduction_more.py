"""Parts of docs/reproduction beyond the paper's tables: training as in the code, ablations, training curves, the cost.

`python reproduction/pages/make_reproduction.py` writes them into the pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from reproduction_tables import NOT_RUN, SCORES, Study, markdown, number, ours, printed_mean, short_title

from avuc.report.colours import colour_of
from avuc.report.metric_text import metric_text
from avuc.report.study.figures import saved
from avuc.report.study.paper_comparison import Published
from avuc.study.recipe.config import MethodConfig, plain

# setting of a method → its name in a table
FACTORS = {
    "method.kind": "method",
    "method.initial_std": "initial σ",
    "method.prior_std": "prior σ",
    "method.delta": "MOPED δ",
    "method.train_draws": "draws a training step",
    "objective.kind": "objective",
    "objective.beta": "β",
    "objective.variant": "loss variant",
    "objective.kl_weight": "KL weight",
    "objective.kl_gradient": "gradient of the KL",
    "objective.threshold": "threshold",
    "objective.warmup_epochs": "warm-up epochs",
    "start": "start",
    "calibrator": "calibrator",
    "samples": "draws",
}


def scores(rows: Iterable[tuple[str, Study, str]], first: str = "") -> str:
    """Return a table with accuracy and ECE on clean images, and all scores at intensity 5.

    Args:
        rows: (label, study, method) of each line.
        first: heading of the first column.
    """
    head = [first, "seeds", "accuracy, clean", "ECE, clean", "accuracy, 5"]
    head += [f"{short_title(metric)}, 5" for metric in SCORES]
    lines = []
    for label, study, method in rows:
        accuracy = {
            where: ours(study.get(method, "accuracy", where), digits=1, percent=True) for where in ("clean", "5")
        }
        seeds, clean_ece = str(study.get(method, "ece", "5").seeds), ours(study.get(method, "ece", "clean"))
        cells = [ours(study.get(method, metric, "5"), metric) for metric in SCORES]
        lines.append([label, seeds, accuracy["clean"], clean_ece, accuracy["5"], *cells])
    return markdown(head, lines)


def code_path(studies: Mapping[str, Study], printed: Sequence[Published]) -> str:
    """Return the methods trained as in the released code and as in the text, below the paper's figures."""
    if "code" not in studies:
        return NOT_RUN
    rows = [(f"{method}, as in the code", studies["code"], method) for method in studies["code"].results.names]
    if "paper" in studies:
        paper_methods = [name for name in ("SVI", "SVI-AvUC") if name in studies["paper"].results.names]
        rows = [(f"{method}, as in the text", studies["paper"], method) for method in paper_methods] + rows
    table = scores(rows)
    for method in ("SVI-AvUC", "SVI"):
        cells = [number(printed_mean(printed, method, metric), metric) for metric in SCORES]
        line = f"| {method}, as printed | – | – | – | – | {' | '.join(cells)} |"
        lines = table.split("\n")
        table = "\n".join([*lines[:2], line, *lines[2:]])
    return table


def without_threshold(studies: Mapping[str, Study]) -> str:
    """Return SVI-AUAvUC and SVI-AUAvUTS beside the variants with a threshold."""
    methods = ("SVI", "SVI-AvUTS", "SVI-AUAvUTS", "SVI-AvUC", "SVI-AUAvUC")
    for study in (studies[name] for name in ("paper", "auavuc") if name in studies):
        if any("AUAvU" in name for name in study.results.names):
            return scores((method, study, method) for method in methods if method in study.results.names)
    return NOT_RUN


def changes(method: MethodConfig, base: MethodConfig) -> dict[str, str]:
    """Return the settings in which a method differs from another, by their names in a table."""
    settings, base_settings = (_settings(config) for config in (method, base))
    keys = dict.fromkeys([*settings, *base_settings])
    changed = {key: settings.get(key) for key in keys if settings.get(key) != base_settings.get(key)}
    if "method.kind" in changed:  # another method has other settings, so its kind is enough
        return {"method": f"{changed['method.kind']}"}
    hidden = set()
    if changed.get("method.moped"):  # δ is enough: MOPED starts from trained weights, which determine σ
        changed["method.delta"] = settings["method.delta"]
        hidden |= {"method.moped", "method.initial_std", "start"}
    if changed.get("objective.kind") == "plain":
        changed["objective.beta"] = "none (SVI)"
        hidden |= {"objective.kind", "objective.variant", "objective.warmup_epochs", "objective.threshold"}
    if changed.get("objective.kl_gradient") is False:
        hidden.add("objective.kl_weight")
    visible = {key: value for key, value in changed.items() if key not in hidden}
    return {FACTORS.get(key, key): "none" if value is None else f"{value}" for key, value in visible.items()}


def _settings(method: MethodConfig) -> dict[str, Any]:
    """Return all settings of a method, flat."""
    settings: dict[str, Any] = {"start": method.init_from or None, "samples": method.samples or None}
    settings["calibrator"] = method.calibrator.kind if method.calibrator else None
    if method.method is not None:
        settings["method.kind"] = method.method.name
        settings |= {f"method.{key}": value for key, value in plain(method.method).items()}
        settings |= {f"objective.{key}": value for key, value in plain(method.objective).items()}
        settings |= {f"train.{key}": value for key, value in plain(method.train).items()}
    return settings


def ablation(studies: Mapping[str, Study], base: str) -> str:
    """Return the table of the ablation: each method by the settings that it changes."""
    if "ablation" not in studies:
        return NOT_RUN
    study = studies["ablation"]
    methods = {method.name: method for method in study.recipe.methods if method.name in study.results.names}
    base = base if base in methods else next(name for name, method in methods.items() if method.method is not None)
    changed = {
        # compared by the method that trained its network
        name: changes(methods.get(method.reuse_model, method), methods[base]) | _after_training(method)
        for name, method in methods.items()
        if name != base
    }
    order = sorted(changed, key=lambda name: ("; ".join(changed[name]), name))
    lines = [(f"**{base}** (all others are this but for…)", study, base)]
    lines += [
        ("; ".join(f"{key}: {value}" for key, value in changed[name].items()) or name, study, name) for name in order
    ]
    return scores(lines, "what is changed")


def _after_training(method: MethodConfig) -> dict[str, str]:
    """Return what a method that uses another method's network changes after training."""
    if not method.reuse_model:
        return {}
    settings = {
        "calibrator": method.calibrator.kind if method.calibrator else "",
        "draws": str(method.samples or ""),
        "batch normalisation": "of each draw" if method.bn_images else "",
    }
    return {key: value for key, value in settings.items() if value}


def beta_rows(studies: Mapping[str, Study], base: str) -> tuple[Study, list[tuple[float, str]]] | None:
    """Return a study and its (β, method) that differ only in β, smallest β first; None if there is none."""
    for study in (studies[name] for name in ("beta", "ablation") if name in studies):
        finished = [method for method in study.recipe.methods if method.name in study.results.names]
        methods = {method.name: method for method in finished if method.method}
        if not methods:
            continue
        base_method = methods[base] if base in methods else next(iter(methods.values()))
        similar = [
            config for config in methods.values() if config is base_method or set(changes(config, base_method)) == {"β"}
        ]
        if len(similar) > 1:
            return study, sorted((_beta(method), method.name) for method in similar)
    return None


def _beta(method: MethodConfig) -> float:
    """Return the weight of the AvUC loss; 0 without it."""
    return 0.0 if method.objective.kind == "plain" else method.objective.beta


def beta(studies: Mapping[str, Study], base: str) -> str:
    """Return the table of β: accuracy, ECE and UCE under Gaussian blur of intensity 3, as in the paper's figure."""
    study_and_rows = beta_rows(studies, base)
    if study_and_rows is None:
        return NOT_RUN
    study, rows = study_and_rows
    set_titles = {"gaussian_blur 3": "Gaussian blur 3"}
    if len(study.results.shifts) > 1:
        set_titles["5"] = f"{len(study.results.shifts)} shifts at 5"
    columns = [(where, metric) for where in set_titles for metric in ("accuracy", "ece", "uce")]
    head = ["β", "seeds", *(f"{metric_text(metric).title}, {set_titles[where]}" for where, metric in columns)]
    lines = [
        [f"{value:g}", str(study.get(method, "ece", "5").seeds)]
        + [ours(study.get(method, metric, where), percent=metric == "accuracy") for where, metric in columns]
        for value, method in rows
    ]
    return markdown(head, lines) + "\n\n![ECE, UCE and accuracy against β](../figures/reproduction-beta.svg)"


# curves


def curves(studies: Mapping[str, Study]) -> str:
    """Return the links to the figures of the training."""
    if "paper" not in studies:
        return NOT_RUN
    return (
        "![Training: accuracy, AvU and the losses by epoch](../figures/reproduction-training.svg)\n\n"
        "![Validation: accuracy and AvU by epoch](../figures/reproduction-validation.svg)\n\n"
        "![NLL on training and on held-out images by epoch](../figures/reproduction-fit.svg)"
    )


def drawings(studies: Mapping[str, Study], base: str) -> dict[str, bytes]:
    """Return file name → SVG of the paper's figures of training and of β."""
    figures = {}
    if "paper" in studies:
        study = studies["paper"]
        training = {
            "accuracy": "accuracy",
            "avu": "AvU",
            "elbo": "ELBO loss",
            "avuc": "AvUC loss",
            "total": "total loss",
        }
        validation = {"validation_accuracy": "validation accuracy", "validation_avu": "validation AvU"}
        for name, panels, size in (("training", training, (10.0, 2.6)), ("validation", validation, (6.0, 2.8))):
            paint = partial(_paint_history, study=study, panels=panels)
            figures[f"reproduction-{name}.svg"] = saved(name, size, paint)["svg"]
        figures["reproduction-fit.svg"] = saved("fit", (9.0, 2.8), partial(_paint_fit, study=study))["svg"]
    study_and_rows = beta_rows(studies, base)
    if study_and_rows is not None:
        paint = partial(_paint_beta, study=study_and_rows[0], rows=study_and_rows[1])
        figures["reproduction-beta.svg"] = saved("beta", (6.0, 2.8), paint)["svg"]
    return figures


def _paint_history(figure: Any, study: Study, panels: Mapping[str, str]) -> None:
    """Draw what training logged in each epoch, one panel for each key of `panels`."""
    methods = [name for name in ("SVI", "SVI-AvUC") if name in study.results.names]
    grid = figure.subplots(1, len(panels))
    for axes, (key, title) in zip(grid, panels.items(), strict=True):
        for index, method in enumerate(methods):
            points = _by_epoch(study, method, key)
            if any(points.values()):
                _line(axes, points, index)
        axes.set(xlabel="epoch", title=title)
    for index, method in enumerate(methods):
        grid[0].plot([], [], color=colour_of(index)[0], label=method)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _paint_fit(figure: Any, study: Study) -> None:
    """Draw the NLL on training and on held-out images by epoch, one panel for each method."""
    methods = [name for name in ("Vanilla", "SVI", "SVI-AvUC") if name in study.results.names]
    labels = {"nll": "training images", "validation_nll": "held-out images"}
    for axes, method in zip(np.atleast_1d(figure.subplots(1, len(methods))), methods, strict=True):
        for index, key in enumerate(labels):
            _line(axes, _by_epoch(study, method, key), index, label=labels[key] if method == methods[0] else None)
        axes.set(xlabel="epoch", title=f"{method}: NLL", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _by_epoch(study: Study, method: str, key: str) -> dict[int, float]:
    """Return epoch, counted from 1 → the mean over seeds of what training logged under `key`."""
    by_epoch: dict[int, list[float]] = {}
    for history in study.results.methods[study.results.names.index(method)].history:
        for record in history:
            value = record.get("nll", math.nan) + record.get("kl", 0.0) if key == "elbo" else record.get(key)
            if isinstance(value, float) and math.isfinite(value):
                by_epoch.setdefault(record["epoch"] + 1, []).append(value)
    return {epoch: float(np.mean(values)) for epoch, values in by_epoch.items()}


def _line(axes: Any, points: Mapping[int, float], colour: int, **options: Any) -> None:
    """Draw a line; `colour` is the index of its colour."""
    marker = "o" if len(points) < 40 else ""
    style = {"linewidth": 1.2, "marker": marker, "markersize": 2, "color": colour_of(colour)[0]}
    axes.plot(list(points), list(points.values()), **style, **options)


def _paint_beta(figure: Any, study: Study, rows: Sequence[tuple[float, str]]) -> None:
    """Draw ECE, UCE and accuracy against β; `rows` are (β, method)."""
    left, right = figure.subplots(1, 2)
    for index, metric in enumerate(("ece", "uce", "accuracy")):
        points = [study.get(method, metric, "gaussian_blur 3").value for _, method in rows]
        axes = right if metric == "accuracy" else left
        style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "color": colour_of(index)[0]}
        axes.plot([value for value, _ in rows], points, label=metric_text(metric).title, **style)
    for axes in (left, right):
        axes.set(xlabel="β, Gaussian blur of intensity 3")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


# the cost


def cost(studies: Mapping[str, Study]) -> str:
    """Return the time and the throughput of each study, and the hardware."""
    if not studies:
        return NOT_RUN
    head = ["study", "networks", "training", "images/s", "results", "judging", "images × draws/s", "wall time"]
    lines = []
    for name, study in studies.items():
        effort = study.effort
        rates = f"{effort.training_rate:,.0f}", f"{effort.judging_rate:,.0f}"
        lines.append([name, str(effort.models), _time(effort.training_seconds), rates[0], f"{effort.cells:,}"])
        lines[-1] += [_time(effort.judging_seconds), rates[1], _time(effort.seconds)]
    total = sum(study.effort.seconds for study in studies.values())
    runs = [run for study in studies.values() for run in study.effort.runs]
    machines = dict.fromkeys(f"{run.hardware} (torch {run.torch})" for run in runs)
    interrupted = sum(run.seconds is None for run in runs)
    runs_text = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    text = f"{markdown(head, lines)}\n\nAll runs together: **{_time(total)}** in {runs_text} on {'; '.join(machines)}."
    if interrupted:
        text += f" {interrupted} of them ended from outside; there the time of what was finished counts."
    revisions = dict.fromkeys(run.revision[:12] + "+" * run.revision.endswith("+") for run in runs if run.revision)
    return text + (f" Revisions: {', '.join(revisions)}." if revisions else "")


def _time(seconds: float) -> str:
    """Return a duration in minutes, or in hours from two hours on."""
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
