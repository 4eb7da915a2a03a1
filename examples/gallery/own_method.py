"""Your own method says how to build, train and sample; the rest comes with the library.

The method below adds noise to the image, in training and in each posterior sample. `fit` trains it, `predict` averages
its samples, and with a line in `METHODS` recipes and studies can name it, too. Beside it stands a plain network with
the same data and epochs. One seed each: the picture shows that it works, not which one is better.

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
from avuc.nets import mlp
from avuc.train import TrainSettings, fit


@dataclass
class NoisyImages:
    net: torch.nn.Module
    std: float
    num_draws, takes_bytes = None, True  # any number of samples; uint8 images become floats in [0, 1]

    def draw(self, generator):
        noise = self.std * torch.randn(1, 1, 8, 8, generator=generator)  # one pattern for each sample
        return lambda images: self.net(images + noise)


@dataclass(frozen=True)
class ImageNoise(Method):
    name = "image_noise"
    std: float = 0.25

    def build(self, net, *, generator=None):
        return deepcopy(net)

    def logits(self, model, images):
        return model(images + self.std * torch.randn_like(images))

    def posterior(self, models, *, images=None):
        return NoisyImages(self.one(models).eval(), self.std)


digits = load_digits()
images, labels = torch.tensor(digits.images * 255 / 16).to(torch.uint8)[..., None], torch.tensor(digits.target)
settings = TrainSettings(15, batch_size=50, learning_rate=3e-3, milestones=(), factors=(), pad=0, flip=False)
train = Dataset(images[:1000], labels[:1000], 10)
noisy = avuc.shifts.corrupt(images[1000:], "gaussian_noise", 5, seed=0)
figure, ax = plt.subplots()
for method in (Vanilla(), ImageNoise()):
    fitted = fit(method, lambda g: mlp(10, (8, 8, 1), generator=g), train, settings=settings)
    predictions = avuc.predict(fitted.posterior, noisy, labels[1000:], samples=32)
    avuc.plot.reliability(predictions, label=method.name, ax=ax)
    print(f"{method.name:12} ECE {avuc.metrics.ece(predictions.probs, predictions.labels):.3f}")
figure.savefig("own_method.svg")
