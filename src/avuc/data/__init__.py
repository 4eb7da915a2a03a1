"""Data sets, augmentation and batches.

`load_dataset` loads every data set as a `Dataset`: uint8 images (N, H, W, C) and int64 labels (N,) in memory. `Stream`
reads picture files that do not fit in memory.

>>> data = load_dataset("mnist5k", split="test")
>>> data.images.shape, data.num_classes
(torch.Size([1000, 28, 28, 1]), 10)
"""

from avuc.data.arrays import UNLABELLED as UNLABELLED
from avuc.data.arrays import Dataset, as_input, channel_stats, epoch_batches
from avuc.data.augmentation import Augmentation, augment
from avuc.data.augmentation import augment_at as augment_at
from avuc.data.folder import list_folder
from avuc.data.imagenet import list_imagenet, list_imagenet_c
from avuc.data.load import DATASETS, load_dataset
from avuc.data.split import Split, split_dataset
from avuc.data.stream import Stream

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "Split",
    "Stream",
    "as_input",
    "augment",
    "channel_stats",
    "epoch_batches",
    "list_folder",
    "list_imagenet",
    "list_imagenet_c",
    "load_dataset",
    "split_dataset",
]
