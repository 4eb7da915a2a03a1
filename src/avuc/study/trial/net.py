"""Try the network of a study on one batch, on shifted examples and with every method, before anything is trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.data import Stream
from avuc.data.tensors import MemoryData, TensorData, each
from avuc.posterior import seeded_generator
from avuc.prediction.outputs import check_outputs
from avuc.prediction.task import Task
from avuc.study.data.own import load_own
from avuc.study.data.sets import StudyData
from avuc.study.data.shifted import scaled
from avuc.study.net import RETURN, make_net
from avuc.study.own.code import ANY_ERROR, described, is_path
from avuc.study.recipe.config import MethodConfig, Recipe
from avuc.study.trial.lazy import refuse_lazy_layers
from avuc.study.trial.step import take_step

FEW = 8  # examples in the batch
ALIKE = 0.01  # logits that differ by more, relative to their spread, do not differ by rounding only


def try_net(
    recipe: Recipe, data: StudyData, shifted: Mapping[tuple[str, int], MemoryData], device: torch.device
) -> None:
    """Run the network on a batch and on shifted examples, and take one step of every method.

    The network runs on the CPU first, where its errors are plainer than on a GPU.

    Args:
        recipe: the study.
        data: its data.
        shifted: a few shifted examples, by shift and severity.
        device: where the steps are taken; on a CPU those of a large network can take minutes.
    """
    config, held = recipe.net, data.validation
    start = seeded_generator(0)
    net = make_net(config, held.num_classes, data.image_shape, None, start, any_inputs=data.any_inputs)
    # one held-out example is too few for batch normalisation
    some = held if len(held) >= FEW or recipe.data.stream else in_memory(data.train(1, 0))
    batch, labels = _batch(some)
    name = f"net.name: {config.name}"
    refuse_lazy_layers(recipe, net, batch)
    try:
        logits = _run(net, batch)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except ANY_ERROR as error:
        raise InputError(
            f"{name} failed on a batch {_shapes(batch)}: {described(error)}{_other_precision(net, batch)}"
        ) from error
    if not isinstance(logits, Tensor):
        raise InputError(f"{name} returned a {type(logits).__name__} for a batch; {RETURN}")
    expected = (len(labels), held.num_classes, *labels.shape[1:])
    if tuple(logits.shape) != expected:
        raise InputError(
            f"{name} returned {tuple(logits.shape)} for a batch of {len(labels)}; the labels have {held.num_classes} "
            f"classes, so {expected} was expected{_hint(logits, labels, expected, config.class_dim)}"
        )
    if labels.ndim == 2 and logits.shape[1] == logits.shape[2]:
        _try_class_dim(net, batch, tuple(logits.shape), config.class_dim, name)
    try:
        check_outputs(logits, Task())
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if recipe.study.shift_size:
        _try_size(net, scaled(some.subset(range(len(labels))), recipe.study.shift_size), tuple(logits.shape), name)
    _try_finite(net, data, logits, name)
    _try_one(net, batch, logits, name)
    for (shift, severity), examples in shifted.items():
        if is_path(shift) or isinstance(examples, TensorData):
            _try_shifted(net, examples, shift, severity)
    for method in recipe.methods:
        _check_settings(method, held)
    for method in recipe.trained:
        take_step(recipe, method, net, batch, labels, data.num_train, device)
    _note_equal_members(recipe, data, net)


def _try_class_dim(net: nn.Module, batch: Any, shape: tuple[int, ...], class_dim: int, name: str) -> None:
    """Find out where a network has its classes if there are as many as tokens: examples with a token less show it.

    Args:
        net: the network, whose logits should be (N, classes, T).
        batch: a batch.
        shape: of its logits.
        class_dim: of the recipe.
        name: of the network, for messages.
    """
    rows, classes, length = shape
    other = -1 if class_dim == 1 else 1
    try:
        shorter = _run(
            net, each(batch, lambda part: part[:, :-1] if part.ndim > 1 and part.shape[1] == length else part)
        )
        found = tuple(shorter.shape)
    except Exception:  # whatever the user's network raises: its length may be fixed
        found = ()
    if found == (rows, length - 1, classes):
        raise InputError(
            f"{name} has the classes in dimension {other} of its logits, and net.class_dim is {class_dim}; set "
            f"net.class_dim = {other}"
        )
    if found != (rows, classes, length - 1):
        print(
            f"avuc: {name}: there are as many tokens as classes, {classes}; net.class_dim = {class_dim} says which "
            f"dimension of the logits has the classes, and {other} is the other one",
            file=sys.stderr,
        )


def _note_equal_members(recipe: Recipe, data: StudyData, net: nn.Module) -> None:
    """Print a line if the members of an ensemble start with the same weights, as with a stored or loaded network."""
    config, ensembles = recipe.net, [method for method in recipe.trained if method.method and method.method.members > 1]
    names = [method.name for method in ensembles if not method.init_from and not method.skip_training]
    if not config.is_own or config.weights or not names:
        return
    classes, shape = data.validation.num_classes, data.image_shape
    other = make_net(config, classes, shape, None, seeded_generator(1), any_inputs=data.any_inputs)
    first, second = dict(net.named_parameters()), dict(other.named_parameters())
    if first.keys() != second.keys() or any(is_lazy(weight) for weight in first.values()):
        return
    if all(torch.equal(weight, second[name]) for name, weight in first.items()):
        print(
            f"avuc: net.name: {config.name} returns the same weights for every seed, so the members of "
            f"{', '.join(names)} start alike and differ only by the order of the training data",
            file=sys.stderr,
        )


def in_memory(data: MemoryData | Stream) -> MemoryData:
    """Return training data that are no stream of files."""
    assert not isinstance(data, Stream)  # only files are streamed, not the user's own source
    return data


def _try_finite(net: nn.Module, data: StudyData, logits: Tensor, name: str) -> None:
    """Refuse NaN and infinite logits: those of the first examples, and of all examples with such inputs."""
    config = data.config
    tested = "" if config.evaluate_on_validation else "test"
    # as the user's function returns them, so that the number of an example is the user's
    for split in filter(None, ("train", config.validation_split, tested) if config.is_own else ()):
        some = load_own(config, split)
        rows = _unusual_rows(some)
        if len(rows) and not _is_finite(_run(net, some.batch(rows[:FEW])[0])):
            raise InputError(
                f"data.source: {config.source} ({split}): {len(rows)} of {len(some)} examples have NaN or infinite "
                f"inputs (first: example {int(rows[0])}), and so are the network's logits; remove them"
            )
    if not _is_finite(logits):
        raise InputError(f"{name} returned NaN or infinite logits for a batch of {len(logits)}, before any training")


def _first(tensor: Tensor) -> Tensor:
    return tensor[:1]


def _try_one(net: nn.Module, batch: Any, logits: Tensor, name: str) -> None:
    """Refuse a network that takes no single example; print a line if its logits depend on the rest of a batch."""
    try:
        with torch.random.fork_rng(devices=[]):
            alone = _run(net, each(batch, _first))
    except ANY_ERROR as error:
        raise InputError(
            f"{name} failed on a single example, in evaluation mode: {described(error)}; batch normalisation needs "
            "running statistics"
        ) from error
    if any(is_lazy(weight) for weight in net.parameters()):
        return  # each copy of the network gets other weights
    spread = float(logits[logits.isfinite()].std(correction=0))
    if not torch.allclose(alone, logits[:1], rtol=ALIKE, atol=ALIKE * spread):
        print(
            f"avuc: {name} returns other logits for an example that is alone in its batch, in evaluation mode: they "
            "are random, or depend on the other examples; figures then depend on the size of batches",
            file=sys.stderr,
        )


def _unusual_rows(data: MemoryData) -> Tensor:
    """Return the indices of the examples with NaN or infinite inputs."""
    parts = [data.inputs] if isinstance(data.inputs, Tensor) else data.inputs.values()
    unusual = torch.zeros(len(data), dtype=torch.bool, device=data.device)
    for part in parts:
        if part.is_floating_point():
            unusual |= ~part.reshape(len(data), -1).isfinite().all(1)
    return unusual.nonzero()[:, 0]


def _is_finite(logits: Tensor) -> bool:
    """Return whether no row has NaN, +inf or only −inf; a single class may be impossible."""
    return bool(logits.amax(1).isfinite().all())


def _run(net: nn.Module, batch: Any) -> Any:
    with torch.no_grad():
        return deep_copy(net).eval()(batch)


def _try_shifted(net: nn.Module, data: MemoryData, shift: str, severity: int) -> None:
    """Refuse a shift whose examples the network does not take, or for which it returns no numbers."""
    batch, labels = _batch(data)
    where = f"study.shifts: {shift}: at severity {severity} the network"
    try:
        logits = _run(net, batch)
    except ANY_ERROR as error:
        raise InputError(f"{where} failed on a batch {_shapes(batch)}: {described(error)}") from error
    expected = (len(labels), data.num_classes, *labels.shape[1:])
    if tuple(logits.shape) != expected:
        raise InputError(f"{where} returned {tuple(logits.shape)} for a batch {_shapes(batch)}; expected {expected}")
    if not _is_finite(logits):
        inputs = "; the shift returned NaN or infinite numbers, too" if len(_unusual_rows(data)) else ""
        raise InputError(f"{where} returned NaN or infinite logits{inputs}")


def _try_size(net: nn.Module, data: MemoryData, expected: tuple[int, ...], name: str) -> None:
    """Refuse a network that takes no images of the size at which shifts act."""
    batch, _ = _batch(data)
    where = f"study.shift_size: {name.removeprefix('net.name: ')}"
    try:
        shape = tuple(_run(net, batch).shape)
    except ANY_ERROR as error:
        raise InputError(f"{where} failed on a batch {_shapes(batch)}: {described(error)}; leave it out") from error
    if shape != expected:
        raise InputError(f"{where} returned {shape} for a batch {_shapes(batch)}; expected {expected}")


def _check_settings(method: MethodConfig, data: MemoryData) -> None:
    """Refuse settings that are for images with one label each."""
    if isinstance(data, TensorData) and method.train.augmentation != "crop":
        raise InputError(
            f"methods.{method.name}.train.augmentation: {method.train.augmentation} is for uint8 images with one label "
            "each; leave it out"
        )
    if method.bn_images and not isinstance(data.inputs, Tensor):
        raise InputError(f"methods.{method.name}.bn_images: needs inputs that are one tensor, not a mapping")


def _other_precision(net: nn.Module, batch: Any) -> str:
    """Return a remedy if the inputs are float64 and the weights float32, as with arrays of NumPy, or the reverse."""
    inputs = {part.dtype for part in ([batch] if isinstance(batch, Tensor) else batch.values())}
    weights = {parameter.dtype for parameter in net.parameters()}
    if (torch.float64 in inputs) == (torch.float64 in weights):
        return ""
    wrong, owner = ("inputs", "load") if torch.float64 in inputs else ("network's weights", "the network's function")
    return f"; the {wrong} are float64: convert them with .float() in {owner}"


def _hint(logits: Tensor, labels: Tensor, expected: tuple[int, ...], class_dim: int) -> str:
    """Return what the user may have meant; an empty text if that is not clear."""
    last = tuple(logits.movedim(-1, 1).shape) if logits.ndim > 2 else ()
    if class_dim == 1 and last == expected:
        return "; set net.class_dim = -1 for classes in the last dimension"
    if labels.ndim == logits.ndim and labels.shape[1] == 1:
        return f"; labels (N, {', '.join(map(str, labels.shape[1:]))}) have one dimension too many: use labels[:, 0]"
    if labels.ndim == 2 and logits.ndim == 2:
        return (
            f"; labels (N, {labels.shape[1]}) are labels of tokens: for one label for each example use (N,), such as "
            ".argmax(1) of one-hot labels"
        )
    if tuple(logits.shape) in ((len(labels), 1), (len(labels),)) and expected == (len(labels), 2):
        return "; one logit z for two classes is the pair of logits (0, z)"
    return ""


def _batch(data: MemoryData) -> tuple[Any, Tensor]:
    """Return the first few examples and their labels; missing labels of images become 0."""
    rows = torch.arange(min(FEW, len(data)))
    inputs, labels = data.batch(rows)
    return inputs, labels if isinstance(data, TensorData) else labels.clamp(min=0)


def _shapes(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return str(tuple(batch.shape))
    return str({name: tuple(tensor.shape) for name, tensor in batch.items()})
