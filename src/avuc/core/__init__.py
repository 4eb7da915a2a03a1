"""Helpers for all other packages: errors, files, progress, arrays, sums over processes. None of them uses a model."""
