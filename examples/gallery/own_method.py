"""Your own method says how to build, train and sample; the rest comes with the library.

The method below adds noise to the image, in training and in each posterior sample; `fit` and `predict` do the rest.
With a line in `METHODS`, recipes can name it, too. One seed each: the picture shows that it works, not that it helps.

Topic: Extend
Picture: Reliability of a plain network and of the method with noisy images, on test digits with noise.
"""

from copy import deepcopy
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import avuc
from avuc.data import Dataset
from avuc.methods import Method, Vanilla
from avuc.train import TrainSettings, fit

STD = 0.25  # of the noise; ink is 0 to 1
OPTIONS = {"batch_size": 50, "learning_rate": 3e-3, "milestones": (), "factors": (), "pad": 0, "flip": False}


@dataclass
class NoisyImages:
    net: torch.nn.Module
    num_draws, takes_bytes = None, True  # any number of samples; uint8 images become floats in [0, 1]

    def draw(self, generator):
        noise = STD * torch.randn(1, 1, 8, 8, generator=generator)  # one pattern for each sample
        return lambda images: self.net(images + noise)


@dataclass(frozen=True)
class ImageNoise(Method):
    name = "image_noise"

    def build(self, net, *, generator=None):
        return deepcopy(net)

    def logits(self, model, images):
        return model(images + STD * torch.randn_like(images))

    def posterior(self, models, *, images=None):
        return NoisyImages(self.one(models).eval())


pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
images = (pixels * 255 / 16).to(torch.uint8).view(-1, 8, 8, 1)  # (N, H, W, C)
train, settings = Dataset(images[:1000], labels[:1000], 10), TrainSettings(15, **OPTIONS)
noisy = avuc.shifts.corrupt(images[1000:], "gaussian_noise", 5, seed=0)
ax = plt.subplots()[1]
for method in (Vanilla(), ImageNoise()):
    fitted = fit(method, lambda g: avuc.nets.mlp(10, (8, 8, 1), generator=g), train, settings=settings)
    predictions = avuc.predict(fitted.posterior, noisy, labels[1000:], samples=32)
    avuc.plot.reliability(predictions, label=method.name, ax=ax)
    print(f"{method.name:12} ECE {avuc.metrics.ece(predictions.probs, predictions.labels):.3f}")
plt.savefig("own_method.svg")
