"""Every metric of `avuc.metrics` as a `torchmetrics.Metric`. Needs `pip install 'avuc[torchmetrics]'`.

states.py    what is kept of each batch, for all of them
suite.py     all metrics at once
single.py    one metric each
"""

from avuc.core.errors import require

require("torchmetrics", "torchmetrics", "avuc.torchmetrics")

from avuc.torchmetrics.single import AURC, ECE, UCE, AvU, AvUAUC, CalibrationMetric
from avuc.torchmetrics.suite import CalibrationSuite

__all__ = ["AURC", "ECE", "UCE", "AvU", "AvUAUC", "CalibrationMetric", "CalibrationSuite"]
