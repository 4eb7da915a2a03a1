"""My data: 1,797 handwritten digits, 8×8 pixels, as a torch Dataset."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class Digits(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels
        self.classes = [str(number) for number in range(10)]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def load(split, train_share=0.6):
    images, labels = load_digits(return_X_y=True)
    # uint8, (N, height, width, channels)
    pixels = torch.from_numpy(images * 255 / 16).round().to(torch.uint8).view(-1, 8, 8, 1)
    cut = int(train_share * len(labels))
    part = slice(0, cut) if split == "train" else slice(cut, None)
    return Digits(pixels[part], torch.from_numpy(labels)[part])
