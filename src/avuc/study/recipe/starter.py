"""`avuc study --init`: a recipe and a module to start a study of your own from."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from avuc.core.atomic import write_text
from avuc.core.errors import InputError

RECIPE = """\
# A study of your own network, data and shifts. Run it in this folder: avuc study recipe.toml
# Every key is explained in docs/reference/recipes.md; `avuc study recipe.toml --dry-run` estimates the time.

[study]
name = "NAME"
seeds = [0, 1]                          # every method is trained once with each seed
samples = 16                            # posterior samples for each prediction
shifts = ["MODULE:rain", "contrast"]    # your own functions, and names in avuc.shifts.SHIFTS
severities = [1, 3, 5]

[data]
source = "MODULE:load"                  # a function in MODULE.py
validation = 200                        # training images to hold out: temperatures and thresholds are learned there
options = { noise = 60 }                # arguments of your function

[net]
name = "MODULE:make_net"
options = { width = 16 }

[train]
epochs = 8
batch_size = 50
learning_rate = 2e-3
milestones = [6]                        # from this epoch on ...
factors = [0.3]                         # ... the learning rate is 0.3 of the first one
pad = 0                                 # random crops of images padded by so many pixels
flip = false                            # a mirrored image may mean something else

[[methods]]
name = "Vanilla"                        # the network as it is
method = "vanilla"

[[methods]]
name = "TS"                             # the same network with a temperature, learned on the held-out images
reuse_model = "Vanilla"
calibrator = "temperature"

[[methods]]
name = "SVI-AvUC"                       # a posterior around the trained network, with the AvUC loss
method = { kind = "svi", moped = true, delta = 0.1 }
objective = { kind = "avuc", beta = 3.0, variant = "monotone", warmup_epochs = 2, kl_weight = 0.1 }
init_from = "Vanilla"
"""

MODULE = '''\
"""The parts of this study. Replace them by your own; a function gets only the arguments that it names."""

import torch
from torch import Tensor, nn


def load(split: str, noise: int = 60) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (N, height, width, channels), and labels, int64 (N,), of "train" or "test".

    A torch Dataset or a DataLoader is fine, too. These images are generated: a bar in one of four places.
    """
    count = 1000 if split == "train" else 400
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    labels = torch.randint(4, (count,), generator=generator)
    images = torch.randint(noise, (count, 16, 16, 1), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[4 * label : 4 * label + 4] += noise // 10
    return images.to(torch.uint8), labels


def make_net(num_classes: int, width: int = 16) -> nn.Module:
    """Return a network from images, float (N, channels, height, width) in [0, 1], to logits (N, num_classes)."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 4 * 4, num_classes),
    )


def rain(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Return the images with bright pixels, more for a higher severity (1 to 5)."""
    drops = torch.rand(images.shape, generator=generator) < 0.03 * severity
    return images.masked_fill(drops, 255)
'''


def write_starter(folder: str | Path) -> tuple[Path, Path]:
    """Write `recipe.toml` and a module to a folder, which is made if it does not exist; return their paths.

    Args:
        folder: its name becomes the name of the study and, as far as Python allows it, of the module.
    """
    folder = Path(folder)
    name = folder.resolve().name or "study"
    module = re.sub(r"\W", "_", name.lower())
    taken = module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None
    module = module if module.isidentifier() and not taken else f"study_{module}"
    files = folder / "recipe.toml", folder / f"{module}.py"
    for path in files:
        if path.exists():
            raise InputError(f"{path}: there is such a file already; choose another folder for --init")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be used as a folder ({error.strerror}); choose another --init") from error
    title = re.sub(r'["\\\\\x00-\x1f\x7f]', " ", name)
    write_text(files[0], RECIPE.replace("MODULE", module).replace("NAME", title))
    write_text(files[1], MODULE)
    return files
