"""`to_bayesian` turns any network into a posterior over its weights, without changes to its code."""

from avuc.bayes.drawn import WeightDraw as WeightDraw
from avuc.bayes.module import BayesianModule, to_bayesian
from avuc.bayes.moped import Moped
from avuc.bayes.prior import Normal

__all__ = ["BayesianModule", "Moped", "Normal", "to_bayesian"]
