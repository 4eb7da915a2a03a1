"""What every method produces and every metric reads.

multiclass.py    Predictions: one class for each row, or for each position of an image or a text
multilabel.py    MultiLabelPredictions: several independent labels for each row
rows.py          the mean of softmaxes, checks of values
"""

from avuc.predictions.multiclass import FORMAT as FORMAT
from avuc.predictions.multiclass import Predictions as Predictions
from avuc.predictions.multilabel import MultiLabelPredictions as MultiLabelPredictions
from avuc.predictions.rows import HasTransform as HasTransform
