"""My network. It gets images as floats in [0, 1], (N, channels, height, width)."""

from torch import nn


class MyNet(nn.Module):
    def __init__(self, num_classes, width=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.classify = nn.Linear(width * 4 * 4, num_classes)

    def forward(self, images):
        return self.classify(self.features(images).flatten(1))
