"""`Predicted`: one model on one set of images, before metrics are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from avuc.calibration import Calibrator
from avuc.data.tensors import MemoryData
from avuc.predictions import Predictions
from avuc.study.evaluation.dense import Maps
from avuc.study.evaluation.validation_fit import ValidationFit
from avuc.study.grid import ModelKey, TestSet
from avuc.study.recipe.config import MethodConfig


@dataclass(frozen=True, eq=False)
class Predicted:
    """The predictions of a model's methods on a set, in CPU memory: the rest of the evaluation needs no GPU."""

    key: ModelKey
    test_set: TestSet
    methods: Sequence[MethodConfig]
    fits: Mapping[str, ValidationFit]  # by name of the method
    predictions: Sequence[Predictions]  # one for each method
    calibrators: Mapping[str, Calibrator]
    sample: bytes | None  # one example, for the gallery
    images: MemoryData | None  # all images, if the report shows single ones
    seconds: float
    prints: Mapping[str, str]  # digests of the images
    maps: Sequence[Maps | None] = ()  # one for each method, of data with a label for each pixel or token
