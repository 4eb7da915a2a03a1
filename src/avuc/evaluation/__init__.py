"""Saved predictions, their evaluation, and what a calibrator changes."""
