"""Parts of docs/reproduction beyond the paper's tables: training as in the code, ablations, curves, the cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from reproduction_tables import NOT_RUN, SCORES, Study, markdown, number, ours

from avuc.report.colours import colour_of
from avuc.report.metric_text import metric_text
from avuc.report.study.figures import saved
from avuc.report.study.paper_comparison import Published, published_value
from avuc.study.config import MethodConfig, plain

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
    """Label, study and row of each line: accuracy and ECE on clean images, everything at intensity 5."""
    head = [first, "seeds", "accuracy, clean", "ECE, clean", "accuracy, 5"]
    head += [f"{metric_text(metric).title.removesuffix(' score')}, 5" for metric in SCORES]
    lines = []
    for label, study, row in rows:
        clean, five = (ours(study.get(row, "accuracy", at), digits=1, percent=True) for at in ("clean", "5"))
        line = [label, str(study.get(row, "ece", "5").seeds), clean, ours(study.get(row, "ece", "clean")), five]
        lines.append(line + [ours(study.get(row, metric, "5"), metric) for metric in SCORES])
    return markdown(head, lines)


def code_path(studies: Mapping[str, Study], printed: Sequence[Published]) -> str:
    """What the released code does, beside what the text says; the paper's figures as the first lines."""
    if "code" not in studies:
        return NOT_RUN
    rows = [(f"{row}, as in the code", studies["code"], row) for row in studies["code"].results.names]
    if "paper" in studies:
        both = [name for name in ("SVI", "SVI-AvUC") if name in studies["paper"].results.names]
        rows = [(f"{row}, as in the text", studies["paper"], row) for row in both] + rows
    table = scores(rows)
    for row in ("SVI-AvUC", "SVI"):
        told = [
            number(
                published_value(printed, table="quartiles", dataset="cifar10", method=row, metric=m, statistic="mean"),
                m,
            )
            for m in SCORES
        ]
        lines = table.split("\n")
        table = "\n".join([*lines[:2], f"| {row}, as printed | – | – | – | – | " + " | ".join(told) + " |", *lines[2:]])
    return table


def without_threshold(studies: Mapping[str, Study]) -> str:
    """SVI-AUAvUC and SVI-AUAvUTS beside their forms with a threshold."""
    pairs = ("SVI", "SVI-AvUTS", "SVI-AUAvUTS", "SVI-AvUC", "SVI-AUAvUC")
    for study in (studies[name] for name in ("paper", "auavuc") if name in studies):
        if any("AUAvU" in name for name in study.results.names):
            return scores((row, study, row) for row in pairs if row in study.results.names)
    return NOT_RUN


def changes(row: MethodConfig, base: MethodConfig) -> dict[str, str]:
    """What a row has different from another one: setting and value, in plain words."""
    one, other = (_settings(each) for each in (row, base))
    found = {key: one.get(key) for key in [*one, *(k for k in other if k not in one)] if one.get(key) != other.get(key)}
    if "method.kind" in found:  # another method has other settings; its kind says it
        return {"method": f"{found['method.kind']}"}
    hidden = set()
    if found.get("method.moped"):  # its width says all; it starts from trained weights, and has no σ of its own
        found["method.delta"] = one["method.delta"]
        hidden |= {"method.moped", "method.initial_std", "start"}
    if found.get("objective.kind") == "plain":
        found["objective.beta"] = "none (SVI)"
        hidden |= {"objective.kind", "objective.variant", "objective.warmup_epochs", "objective.threshold"}
    if found.get("objective.kl_gradient") is False:
        hidden.add("objective.kl_weight")
    told = {key: value for key, value in found.items() if key not in hidden}
    return {FACTORS.get(key, key): "none" if value is None else f"{value}" for key, value in told.items()}


def _settings(row: MethodConfig) -> dict[str, Any]:
    out: dict[str, Any] = {"start": row.init_from or None, "samples": row.samples or None}
    out["calibrator"] = row.calibrator.kind if row.calibrator else None
    if row.method is not None:
        out |= {"method.kind": row.method.name, **{f"method.{k}": v for k, v in plain(row.method).items()}}
        out |= {f"objective.{k}": v for k, v in plain(row.objective).items()}
        out |= {f"train.{k}": v for k, v in plain(row.train).items()}
    return out


def ablation(studies: Mapping[str, Study], base: str) -> str:
    """Every row of the ablation by what it changes."""
    if "ablation" not in studies:
        return NOT_RUN
    study = studies["ablation"]
    rows = {row.name: row for row in study.recipe.methods if row.name in study.results.names}
    base = base if base in rows else next(name for name, row in rows.items() if row.method is not None)
    told = {name: changes(_trained(row, rows), rows[base]) | _read(row) for name, row in rows.items() if name != base}
    order = sorted(told, key=lambda name: ("; ".join(told[name]), name))
    lines = [(f"**{base}** (all others are this but for…)", study, base)]
    lines += [
        ("; ".join(f"{key}: {value}" for key, value in told[name].items()) or name, study, name) for name in order
    ]
    return scores(lines, "what is changed")


def _trained(row: MethodConfig, rows: Mapping[str, MethodConfig]) -> MethodConfig:
    """The row whose model it reads."""
    return rows.get(row.reuse_model, row)


def _read(row: MethodConfig) -> dict[str, str]:
    if not row.reuse_model:
        return {}
    told = {
        "calibrator": row.calibrator.kind if row.calibrator else "",
        "draws": str(row.samples or ""),
        "batch normalisation": "of each draw" if row.bn_images else "",
    }
    return {key: value for key, value in told.items() if value}


def beta_rows(studies: Mapping[str, Study], base: str) -> tuple[Study, list[tuple[float, str]]] | None:
    """Rows that differ in β alone, smallest first."""
    for study in (studies[name] for name in ("beta", "ablation") if name in studies):
        rows = {row.name: row for row in study.recipe.methods if row.name in study.results.names and row.method}
        if not rows:
            continue
        first = rows[base] if base in rows else next(iter(rows.values()))
        found = [row for row in rows.values() if row is first or set(changes(row, first)) == {"β"}]
        if len(found) > 1:
            return study, sorted((_beta(row), row.name) for row in found)
    return None


def _beta(row: MethodConfig) -> float:
    return 0.0 if row.objective.kind == "plain" else row.objective.beta


def beta(studies: Mapping[str, Study], base: str) -> str:
    """The paper's figure has ECE, UCE and accuracy under Gaussian blur of intensity 3."""
    found = beta_rows(studies, base)
    if found is None:
        return NOT_RUN
    study, rows = found
    where = {"gaussian_blur 3": "Gaussian blur 3"}
    if len(study.results.shifts) > 1:
        where["5"] = f"{len(study.results.shifts)} shifts at 5"
    shown = [(at, metric) for at in where for metric in ("accuracy", "ece", "uce")]
    head = ["β", "seeds", *(f"{metric_text(metric).title}, {where[at]}" for at, metric in shown)]
    lines = [
        [f"{value:g}", str(study.get(row, "ece", "5").seeds)]
        + [ours(study.get(row, metric, at), percent=metric == "accuracy") for at, metric in shown]
        for value, row in rows
    ]
    return markdown(head, lines) + "\n\n![ECE, UCE and accuracy against β](../figures/reproduction-beta.svg)"


# curves


def curves(studies: Mapping[str, Study]) -> str:
    if "paper" not in studies:
        return NOT_RUN
    return (
        "![Training: accuracy, AvU and the losses by epoch](../figures/reproduction-training.svg)\n\n"
        "![Validation: accuracy and AvU by epoch](../figures/reproduction-validation.svg)\n\n"
        "![NLL on training and on held-out images by epoch](../figures/reproduction-fit.svg)"
    )


def drawings(studies: Mapping[str, Study], base: str) -> dict[str, bytes]:
    """Name of the file and its content: the paper's figures of training and of β."""
    out = {}
    if "paper" in studies:
        study = studies["paper"]
        panels = {"accuracy": "accuracy", "avu": "AvU", "elbo": "ELBO loss", "avuc": "AvUC loss", "total": "total loss"}
        held = {"validation_accuracy": "validation accuracy", "validation_avu": "validation AvU"}
        for name, shown, size in (("training", panels, (10.0, 2.6)), ("validation", held, (6.0, 2.8))):
            paint = partial(_paint_history, study=study, panels=shown)
            out[f"reproduction-{name}.svg"] = saved(name, size, paint)["svg"]
        out["reproduction-fit.svg"] = saved("fit", (9.0, 2.8), partial(_paint_fit, study=study))["svg"]
    found = beta_rows(studies, base)
    if found is not None:
        paint = partial(_paint_beta, study=found[0], rows=found[1])
        out["reproduction-beta.svg"] = saved("beta", (6.0, 2.8), paint)["svg"]
    return out


def _paint_history(figure: Any, study: Study, panels: Mapping[str, str]) -> None:
    rows = [name for name in ("SVI", "SVI-AvUC") if name in study.results.names]
    grid = figure.subplots(1, len(panels))
    for axes, (name, title) in zip(grid, panels.items(), strict=True):
        for place, row in enumerate(rows):
            points = _by_epoch(study, row, name)
            if any(points.values()):
                _line(axes, points, place)
        axes.set(xlabel="epoch", title=title)
    for place, row in enumerate(rows):
        grid[0].plot([], [], color=colour_of(place)[0], label=row)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _paint_fit(figure: Any, study: Study) -> None:
    """Where held-out images are worse off than training images, and since when."""
    rows = [name for name in ("Vanilla", "SVI", "SVI-AvUC") if name in study.results.names]
    lines = {"nll": "training images", "validation_nll": "held-out images"}
    for axes, row in zip(np.atleast_1d(figure.subplots(1, len(rows))), rows, strict=True):
        for place, name in enumerate(lines):
            _line(axes, _by_epoch(study, row, name), place, label=lines[name] if row == rows[0] else None)
        axes.set(xlabel="epoch", title=f"{row}: NLL", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def _by_epoch(study: Study, row: str, name: str) -> dict[int, float]:
    """Epoch, counted from 1, and the mean over seeds of what training noted in it."""
    found: dict[int, list[float]] = {}
    for seed in study.results.methods[study.results.names.index(row)].history:
        for record in seed:
            value = record.get("nll", math.nan) + record.get("kl", 0.0) if name == "elbo" else record.get(name)
            if isinstance(value, float) and math.isfinite(value):
                found.setdefault(record["epoch"] + 1, []).append(value)
    return {epoch: float(np.mean(values)) for epoch, values in found.items()}


def _line(axes: Any, points: Mapping[int, float], place: int, **more: Any) -> None:
    marker = "o" if len(points) < 40 else ""
    style = {"linewidth": 1.2, "marker": marker, "markersize": 2, "color": colour_of(place)[0]}
    axes.plot(list(points), list(points.values()), **style, **more)


def _paint_beta(figure: Any, study: Study, rows: Sequence[tuple[float, str]]) -> None:
    left, right = figure.subplots(1, 2)
    for place, metric in enumerate(("ece", "uce", "accuracy")):
        points = [study.get(row, metric, "gaussian_blur 3").value for _, row in rows]
        axes = right if metric == "accuracy" else left
        style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "color": colour_of(place)[0]}
        axes.plot([value for value, _ in rows], points, label=metric_text(metric).title, **style)
    for axes in (left, right):
        axes.set(xlabel="β, Gaussian blur of intensity 3")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


# what it took


def cost(studies: Mapping[str, Study]) -> str:
    if not studies:
        return NOT_RUN
    head = ["study", "networks", "training", "images/s", "results", "judging", "images × draws/s", "wall time"]
    lines = []
    for name, study in studies.items():
        e = study.effort
        rates = f"{e.training_rate:,.0f}", f"{e.judging_rate:,.0f}"
        lines.append([name, str(e.models), _time(e.training_seconds), rates[0], f"{e.cells:,}"])
        lines[-1] += [_time(e.judging_seconds), rates[1], _time(e.seconds)]
    total = sum(study.effort.seconds for study in studies.values())
    runs = [run for study in studies.values() for run in study.effort.runs]
    places = dict.fromkeys(f"{run.hardware} (torch {run.torch})" for run in runs)
    broken = sum(run.seconds is None for run in runs)
    many = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    text = f"{markdown(head, lines)}\n\nAll runs together: **{_time(total)}** in {many} on {'; '.join(places)}."
    if broken:
        text += f" {broken} of them ended from outside; there the time of what was finished counts."
    revisions = dict.fromkeys(run.revision[:12] + "+" * run.revision.endswith("+") for run in runs if run.revision)
    return text + (f" Revisions: {', '.join(revisions)}." if revisions else "")


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
