"""Real data in: one file per source, `arrays.py` for what a training step reads."""

from avuc.data.arrays import UNLABELLED, Dataset, as_input, augment, augment_at, channel_stats, epoch_batches

__all__ = ["UNLABELLED", "Dataset", "as_input", "augment", "augment_at", "channel_stats", "epoch_batches"]
