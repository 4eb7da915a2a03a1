"""The numbers of docs/studies/*.md. Each uses one method alone, and its seeds that have all test sets of that number.

A study may be published in parts: a method then has some intensities only. It has no mean over all shifts and
intensities yet, and the means of other methods stay what they were.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from avuc.report.study import paper_comparison
from avuc.report.study.paper_comparison import Figure
from avuc.report.study.result_arrays import Results


def figure(results: Results, method: str, metric: str, where: str, statistic: str = "mean") -> Figure:
    """Return a number of a method for each finished seed; arguments: see `paper_comparison.figure`."""
    if method not in results.names or metric not in results.values:
        return Figure(())
    values, index = results.values[metric], results.names.index(method)
    wanted = {int(where)} if where.isdigit() else set(results.severities) if where in ("", "shifted") else set()
    # a set of which no method has a value has none: a metric need not exist everywhere
    needed = np.isfinite(values).any((0, 1)) & [severity in wanted - {0} for _, severity in results.test_sets]
    finished = np.isfinite(values[index][:, needed]).all(1)
    alone = np.full_like(values, np.nan)
    alone[index, finished] = values[index, finished]
    return paper_comparison.figure(replace(results, values={metric: alone}), method, metric, where, statistic)
