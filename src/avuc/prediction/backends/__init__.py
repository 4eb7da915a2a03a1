"""Backends: each runs the samples of a posterior over a batch, and all give the same logits."""
