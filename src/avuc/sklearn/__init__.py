"""avuc for scikit-learn: a calibrated classifier and scorers. Needs `pip install 'avuc[sklearn]'`.

classifier.py    CalibratedClassifier: any classifier, calibrated by cross-validation
scoring.py       SCORERS: ECE, UCE, NLL, AvU-AUC … for cross_val_score and GridSearchCV
scores.py        logits of a classifier, class numbers of labels
"""

from avuc.core.errors import require

require("sklearn", "sklearn", "avuc.sklearn")

from avuc.sklearn.classifier import CalibratedClassifier
from avuc.sklearn.scoring import SCORERS

__all__ = ["SCORERS", "CalibratedClassifier"]
