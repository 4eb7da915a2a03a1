"""avuc as torchmetrics. Needs `pip install 'avuc[torchmetrics]'`."""

from avuc.core.errors import require

require("torchmetrics", "torchmetrics", "avuc.torchmetrics")

__all__: list[str] = []
