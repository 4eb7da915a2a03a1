"""avuc for Hugging Face Transformers: losses and metrics for `Trainer`. Needs `pip install 'avuc[transformers]'`."""

from avuc.core.errors import require

require("transformers", "transformers", "avuc.transformers")

__all__: list[str] = []
