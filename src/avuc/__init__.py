"""avuc: make a classifier know when it is wrong, and prove it."""

__version__ = "0.1.0"
