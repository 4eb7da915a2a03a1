"""Radial BNN (Farquhar, Osborne & Gal 2020, arXiv:1907.00865): direction on the sphere times a normal radius.

For each weight tensor, w = μ + σ ∘ r·ε/‖ε‖ with ε ~ N(0, I) and r ~ N(0, 1): draws stay near the mean, where a
Gaussian in many dimensions has hardly any mass.
"""

from __future__ import annotations

from dataclasses import dataclass

from avuc.methods.svi import SVI


@dataclass(frozen=True)
class Radial(SVI):
    """SVI with the radial posterior."""

    name = "radial"
    family = "radial"
