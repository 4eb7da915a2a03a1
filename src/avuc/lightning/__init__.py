"""avuc for Lightning: callbacks and `calibrate`. Needs `pip install 'avuc[lightning]'`."""

from avuc.core.errors import require

require("lightning", "lightning", "avuc.lightning")

__all__: list[str] = []
