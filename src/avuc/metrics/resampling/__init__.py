"""Bootstrap resampling behind the intervals of `avuc.metrics.intervals`.

rows.py              draws predictions with replacement, as weights: the ordinary bootstrap, for up to 100,000 rows
group_sums.py        draws groups of dependent rows, such as images, for metrics that are sums over rows
units.py             what is drawn with replacement: rows, or cells of rows
cell_units.py        draws random cells of rows, the same for several models on large data
group_sample.py      a random sample of rows of groups, and the factor of its errors
cells.py             draws cells of similar predictions (Poisson bootstrap): its cost does not grow with the rows
random_cells.py      random cells of predictions, from which the class-wise error of large data is resampled
resample_metrics.py  the metrics of many resamples at once, from their counts; shared by both bootstraps
absolute_error.py    the error of calibration errors, for which the percentile bootstrap fails
best_threshold.py    the error of the detection accuracy, a maximum over thresholds
near_limit.py        intervals of rates near 0 or 1, such as AUROC
separated.py         bounds for samples that the entropy separates, nearly or without a mistake
one_outcome.py       bounds for rows with one outcome
percentile.py        intervals from resampled errors (NumPy only)
"""

from collections.abc import Callable

from avuc._old_names import forward

__getattr__: Callable[[str], object] = forward(__name__)
