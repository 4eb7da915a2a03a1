"""The paper's baselines with the settings of the benchmark that they come from; for docs/reproduction/tables.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduction_tables import NOTHING, SCORES, Study, markdown, number, ours

from avuc.report.metric_text import words_of
from avuc.report.study.paper_comparison import Published, published_value

NAME = "baselines"


def baselines(studies: Mapping[str, Study], printed: Sequence[Published]) -> str:
    """Every method of the study at intensity 5, beside the printed figures."""
    study = studies.get(NAME)
    if study is None:
        return NOTHING
    head = ["mean over 16 shifts, intensity 5", "seeds"]
    head += [
        f"{words_of(metric).title.removesuffix(' score')}: {who}" for metric in SCORES for who in ("printed", "ours")
    ]
    lines = []
    for method in study.results.names:
        line = [method, str(study.get(method, "ece", "5").seeds)]
        for metric in SCORES:
            wanted = {"table": "quartiles", "dataset": "cifar10", "statistic": "mean", "intensity": "5"}
            was = published_value(printed, method=method, metric=metric, **wanted)
            line += [number(was, metric), ours(study.get(method, metric, "5"), metric)]
        lines.append(line)
    return markdown(head, lines)
