"""Put a posterior and its calibrator into production: one module to export, and a calibrator that needs NumPy only.

`import avuc.deploy` does not load torch; `as_module` does when it is first used.

module.py        as_module: the mean over fixed samples, the calibrator and the uncertainty as one nn.Module
draws.py         the samples of a posterior as networks;  rescaling.py: calibrators as modules
calibrator.py    load_calibrator: reads the JSON file of a calibrator, with NumPy only
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from avuc.deploy.calibrator import load_calibrator

if TYPE_CHECKING:
    from avuc.deploy.module import as_module

__all__ = ["as_module", "load_calibrator"]


def __getattr__(name: str) -> object:
    if name != "as_module":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from avuc.deploy.module import as_module

    return as_module
