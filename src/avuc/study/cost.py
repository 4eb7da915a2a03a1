"""How much work a study is and how long it takes, before it runs; the speed is measured on a few batches."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from avuc.core.errors import InputError, MissingExtra
from avuc.study.data.sets import StudyData
from avuc.study.grid import CLEAN, VALIDATION, Plan
from avuc.study.net import make_net

# a training step is a forward pass, a backward pass (about two forward passes) and the update
STEP_IN_FORWARDS = 3.5
MEASURED_SECONDS = 1.0
# ResNet-20 on one H200 in bfloat16: images a second in training (eight networks in a step, batches of 107, 2 ms a
# step) and forward passes a second in evaluation (4 ms a sample for 10,000 images). For planning; not a measurement.
H200 = {"resnet20": (430_000, 2_500_000)}


@dataclass(frozen=True)
class Cost:
    """The work of a study. Counts are exact; times follow from `rate`, forward passes a second on `device`."""

    models: int
    trainings: int  # networks to train; each member of an ensemble counts
    trained_images: int
    sets: int
    evaluations: int
    forward_passes: int
    rate: float
    device: str
    unknown: str = ""  # why counts of images are missing
    net: str = ""

    @property
    def seconds(self) -> float:
        return (self.trained_images * STEP_IN_FORWARDS + self.forward_passes) / self.rate if self.rate else float("nan")

    def sentences(self) -> list[str]:
        lines = [
            f"{self.models} models to train ({self.trainings} networks), {self.sets} test sets, "
            f"{self.evaluations} evaluations"
        ]
        if self.unknown:
            return [*lines, f"no estimate of its time: {self.unknown}"]
        lines.append(
            f"{self.trained_images:,} examples through training, {self.forward_passes:,} forward passes for predictions"
        )
        lines.append(
            f"at least {duration(self.seconds)} on {self.device}, at {self.rate:,.0f} forward passes a second "
            f"(measured now, plain net, one process; a training step counted as {STEP_IN_FORWARDS} of them). Shifts, "
            "metrics and small batches come on top: for a small network they take most of the time"
        )
        if self.net in H200:
            trained, evaluated = H200[self.net]
            seconds = self.trained_images / trained + self.forward_passes / evaluated
            lines.append(
                f"about {duration(seconds)} on one H200, planned with {trained:,} images a second in training and "
                f"{evaluated:,} forward passes a second; plus the time to compile and start"
            )
        return lines


def duration(seconds: float) -> str:
    """
    >>> duration(0.1), duration(100), duration(7200), duration(400000)
    ('a second', '1.7 minutes', '2.0 hours', '4.6 days')
    """
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} seconds" if seconds >= 1.5 else "a second"


def cost_of(plan: Plan, device: str) -> Cost:
    """Return the work of a plan. This loads the data; if that fails, counts of images and times are missing."""
    recipe = plan.recipe
    data = StudyData(recipe, torch.device(device))
    names = [key.method for key in plan.models]
    configs = [
        (config, names.count(config.name))
        for config in recipe.trained
        if config.method is not None and config.name in names
    ]
    networks = sum(
        config.method.members * seeds
        for config, seeds in configs
        if config.method is not None and not config.skip_training
    )
    counts = (len(plan.models), networks)
    try:
        num_train, held, test = data.num_train, len(data.validation), len(data.test)
        outside = sum(len(data.images(test_set)) for test_set in plan.sets if test_set.outside)
        rate = _rate(plan, data)
    except (InputError, MissingExtra, OSError) as error:
        return Cost(*counts, 0, len(plan.sets), plan.evaluations, 0, 0.0, device, unknown=str(error))
    images = sum(
        num_train * config.train.epochs * config.method.members * getattr(config.method, "train_draws", 1) * seeds
        for config, seeds in configs
        if config.method is not None and not config.skip_training
    )
    shifted = sum(not test_set.outside and test_set not in (VALIDATION, CLEAN) for test_set in plan.sets)
    # validation data count twice, because calibrators are fitted on them
    seen = 2 * held + test * (1 + shifted) + outside
    forwards = 0
    for config, seeds in configs:
        most = max((recipe.samples(variant) for variant in plan.methods(config.name)), default=0)
        # samples of the last layer share one pass of the layers before it
        passes = {
            "vanilla": 1,
            "ll_svi": 1,
            "ll_dropout": 1,
            "ensemble": config.method.members if config.method is not None else 1,
        }
        kind = config.method.name if config.method is not None else ""
        forwards += seeds * seen * min(most, passes.get(kind, most))
    return Cost(*counts, images, len(plan.sets), plan.evaluations, forwards, rate, device, net=recipe.net.name)


@torch.no_grad()
def _rate(plan: Plan, data: StudyData) -> float:
    classes, any_inputs = data.test.num_classes, data.any_inputs
    net = make_net(plan.recipe.net, classes, data.image_shape, None, torch.Generator(), any_inputs=any_inputs)
    net.to(data.device).eval()
    batch, labels = data.test.batch(torch.arange(min(256, len(data.test)), device=data.device))
    net(batch)  # the first pass allocates memory, so it is not measured
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < MEASURED_SECONDS:
        net(batch)
        if data.device.type == "cuda":
            torch.cuda.synchronize(data.device)
        done += len(labels)
    return done / spent
