"""What scikit-learn expects of a classifier, so that calibrators work as a step of a Pipeline and in GridSearchCV."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.inputs import as_labels
from avuc.core.errors import InputError
from avuc.metrics.statistics import NLL_FLOOR


class ClassifierMethods:
    """`predict_proba`, `predict`, `score` and `classes_` from `transform`. scikit-learn itself is not needed.

    The inputs are logits and the classes are numbers, 0 … C − 1.
    """

    num_classes_: int

    def transform(self, logits: Any, *, class_dim: int | None = None) -> Any:
        raise NotImplementedError

    @property
    def classes_(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The class numbers 0 … C − 1; only after a fit."""
        return np.arange(self.num_classes_)

    def predict_proba(self, logits: Any) -> Any:
        """Return calibrated probabilities (N, C) of the same type (array or tensor); draws are averaged.

        Args:
            logits: (N, C), (S, N, C), or binary, (N,) or (N, 1).
        """
        calibrated = self.transform(logits)
        scores = calibrated if isinstance(calibrated, Tensor) else torch.from_numpy(np.asarray(calibrated))
        if scores.ndim > 3:
            raise InputError(
                f"predict_proba takes (N, C), found {tuple(scores.shape)}; for dense logits take the softmax of "
                "transform(logits) over the classes"
            )
        if self.num_classes_ == 2 and (scores.ndim == 1 or scores.shape[-1] == 1):
            log_odds = scores if scores.ndim == 1 else scores[..., 0]
            scores = torch.stack((torch.zeros_like(log_odds), log_odds), dim=-1)
        probs = scores.softmax(-1)
        probs = probs.mean(0) if probs.ndim == 3 else probs
        return probs if isinstance(logits, Tensor) else probs.numpy()

    def predict(self, logits: Any) -> Any:
        """Return the class number of the largest calibrated probability, (N,).

        Args:
            logits: as for `transform`.
        """
        return self.predict_proba(logits).argmax(-1)

    def score(self, logits: Any, labels: Any, sample_weight: Any = None) -> float:
        """Return minus the NLL of the calibrated probabilities; higher is better. A temperature has no accuracy.

        Args:
            logits: as for `transform`.
            labels: (N,) class numbers.
            sample_weight: (N,) weights of the rows; None: all rows count the same.
        """
        probs = torch.as_tensor(self.predict_proba(logits)).double()
        targets = as_labels(labels, probs).to(probs.device)
        chosen = probs.gather(-1, targets[:, None])[:, 0].clamp(min=NLL_FLOOR).log()
        return float(np.average(chosen.cpu().numpy(), weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True),
            transformer_tags=TransformerTags(),
            classifier_tags=ClassifierTags(),
            regressor_tags=None,
            input_tags=InputTags(),
        )
