"""What a study will do and what that costs, before it runs; rates are measured here, on a few batches."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from avuc.core.errors import InputError, MissingExtra
from avuc.data.arrays import as_input
from avuc.study.grid import CLEAN, VALIDATION, Plan
from avuc.study.net import make_net
from avuc.study.sets import StudyData

__all__ = ["Cost", "cost_of"]

# a training step is a forward pass, a backward pass (about two of it) and the update
STEP_IN_FORWARDS = 3.5
MEASURED_SECONDS = 1.0
# of ResNet-20 on one H200, in bfloat16: images a second in training (eight networks at once, batches of 107, 2 ms a
# step) and forward passes a second in judging (4 ms a draw for 10,000 images). What to plan with, not what was measured
H200 = {"resnet20": (430_000, 2_500_000)}


@dataclass(frozen=True)
class Cost:
    """Counts are exact; seconds follow from `rate`, forward passes a second of the plain net, measured on `device`."""

    models: int
    trainings: int  # members of ensembles counted
    trained_images: int
    sets: int
    cells: int
    forward_passes: int
    rate: float
    device: str
    unknown: str = ""  # why counts of images are missing
    net: str = ""

    @property
    def seconds(self) -> float:
        return (self.trained_images * STEP_IN_FORWARDS + self.forward_passes) / self.rate if self.rate else float("nan")

    def sentences(self) -> list[str]:
        told = [
            f"{self.models} models to train ({self.trainings} networks), {self.sets} sets of images, {self.cells} cells"
        ]
        if self.unknown:
            return [*told, f"no estimate of its time: {self.unknown}"]
        told.append(
            f"{self.trained_images:,} images through training, {self.forward_passes:,} forward passes for predictions"
        )
        told.append(
            f"about {duration(self.seconds)} on {self.device}, at {self.rate:,.0f} forward passes a second (measured "
            f"now, plain net, one process; a training step counted as {STEP_IN_FORWARDS} of them)"
        )
        if self.net in H200:
            trained, judged = H200[self.net]
            seconds = self.trained_images / trained + self.forward_passes / judged
            told.append(
                f"about {duration(seconds)} on one H200, planned with {trained:,} images a second in training and "
                f"{judged:,} forward passes a second; compiling and starting come on top"
            )
        return told


def duration(seconds: float) -> str:
    """
    >>> duration(100), duration(7200), duration(400000)
    ('1.7 minutes', '2.0 hours', '4.6 days')
    """
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} seconds"


def cost_of(plan: Plan, device: str) -> Cost:
    """Loads the data; where that is not there, the counts that do not need it."""
    recipe = plan.recipe
    data = StudyData(recipe, torch.device(device))
    names = [key.method for key in plan.models]
    rows = [(row, names.count(row.name)) for row in recipe.trained if row.method is not None and row.name in names]
    networks = sum(row.method.members * seeds for row, seeds in rows if row.method is not None and not row.as_given)
    counts = (len(plan.models), networks)
    try:
        num_train, held, test = data.num_train, len(data.validation), len(data.test)
        outside = sum(len(data.images(one)) for one in plan.sets if one.outside)
        rate = _rate(plan, data)
    except (InputError, MissingExtra, OSError) as error:
        return Cost(*counts, 0, len(plan.sets), plan.cells, 0, 0.0, device, unknown=str(error))
    images = sum(
        num_train * row.train.epochs * row.method.members * getattr(row.method, "train_draws", 1) * seeds
        for row, seeds in rows
        if row.method is not None and not row.as_given
    )
    shifted = sum(not one.outside and one not in (VALIDATION, CLEAN) for one in plan.sets)
    # validation twice: once to fit calibrators
    seen = 2 * held + test * (1 + shifted) + outside
    forwards = 0
    for row, seeds in rows:
        most = max((recipe.samples(variant) for variant in plan.rows(row.name)), default=0)
        one = {"vanilla": 1, "ensemble": row.method.members if row.method is not None else 1}
        kind = row.method.name if row.method is not None else ""
        forwards += seeds * seen * min(most, one.get(kind, most))
    return Cost(*counts, images, len(plan.sets), plan.cells, forwards, rate, device, net=recipe.net.name)


@torch.no_grad()
def _rate(plan: Plan, data: StudyData) -> float:
    net = make_net(plan.recipe.net, data.test.num_classes, data.image_shape, None, torch.Generator())
    net.to(data.device).eval()
    batch = as_input(data.test.images[:256])
    net(batch)  # the first one allocates
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < MEASURED_SECONDS:
        net(batch)
        if data.device.type == "cuda":
            torch.cuda.synchronize(data.device)
        done += len(batch)
    return done / spent
