"""avuc for Hugging Face Transformers: losses and metrics for `Trainer`. Needs `pip install 'avuc[transformers]'`."""

from avuc.core.errors import require

require("transformers", "transformers", "avuc.transformers")

from avuc.transformers.metrics import compute_metrics
from avuc.transformers.objective import AvUCObjective
from avuc.transformers.trainer import AvUCTrainer

__all__ = ["AvUCObjective", "AvUCTrainer", "compute_metrics"]
