"""What every method produces and every metric reads.

multiclass.py    Predictions: one class for each row, or for each position of an image or a text
"""

from avuc.predictions.multiclass import FORMAT as FORMAT
from avuc.predictions.multiclass import HasTransform as HasTransform
from avuc.predictions.multiclass import Predictions

__all__ = ["Predictions"]
