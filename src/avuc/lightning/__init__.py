"""avuc for Lightning: callbacks and `calibrate`. Needs `pip install 'avuc[lightning]'`."""

from avuc.core.errors import require

require("lightning", "lightning", "avuc.lightning")

from avuc.lightning.avuc_callback import AvUCCallback
from avuc.lightning.calibrate import calibrate
from avuc.lightning.posterior_callback import PosteriorCallback

__all__ = ["AvUCCallback", "PosteriorCallback", "calibrate"]
