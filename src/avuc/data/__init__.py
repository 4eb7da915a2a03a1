"""Real data in: one file per source, `arrays.py` and `augmentation.py` for what a training step reads."""

from avuc.data.arrays import UNLABELLED, Dataset, as_input, channel_stats, epoch_batches
from avuc.data.augmentation import Augmentation, augment, augment_at
from avuc.data.folder import list_folder
from avuc.data.imagenet import list_imagenet, list_imagenet_c
from avuc.data.load import DATASETS, load_dataset
from avuc.data.split import Split, split_dataset
from avuc.data.stream import Stream

__all__ = [
    "DATASETS",
    "UNLABELLED",
    "Augmentation",
    "Dataset",
    "Split",
    "Stream",
    "as_input",
    "augment",
    "augment_at",
    "channel_stats",
    "epoch_batches",
    "list_folder",
    "list_imagenet",
    "list_imagenet_c",
    "load_dataset",
    "split_dataset",
]
