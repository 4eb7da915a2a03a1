"""avuc for scikit-learn: a calibrated classifier and scorers. Needs `pip install 'avuc[sklearn]'`."""

from avuc.core.errors import require

require("sklearn", "sklearn", "avuc.sklearn")

__all__: list[str] = []
