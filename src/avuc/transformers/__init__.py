"""avuc for Hugging Face Transformers: losses and metrics for `Trainer`. Needs `pip install 'avuc[transformers]'`."""

from avuc.core.errors import require

require("transformers", "transformers", "avuc.transformers")

from avuc.transformers.causal_callback import LinearAvUCCallback
from avuc.transformers.causal_lm import use_linear_avuc
from avuc.transformers.metrics import compute_metrics
from avuc.transformers.objective import AvUCObjective
from avuc.transformers.trainer import AvUCTrainer

__all__ = ["AvUCObjective", "AvUCTrainer", "LinearAvUCCallback", "compute_metrics", "use_linear_avuc"]
