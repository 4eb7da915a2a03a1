"""Noise on any module's weights: `to_bayesian` makes a posterior of a network without touching its code."""

from avuc.bayes.drawn import WeightDraw
from avuc.bayes.module import BayesianModule, to_bayesian
from avuc.bayes.moped import Moped
from avuc.bayes.prior import Normal

__all__ = ["BayesianModule", "Moped", "Normal", "WeightDraw", "to_bayesian"]
