"""Try the user's own code on one batch before anything is trained, so that a mistake costs seconds."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.data import UNLABELLED, Stream
from avuc.data.digest import digest_of, shapes_of
from avuc.data.tensors import MemoryData, TensorData
from avuc.posterior import seeded_generator
from avuc.prediction.outputs import check_outputs
from avuc.prediction.task import Task
from avuc.study.config import MethodConfig, Recipe
from avuc.study.grid import CLEAN, VALIDATION, TestSet
from avuc.study.net import RETURN, make_net
from avuc.study.overlap import check_overlap
from avuc.study.own_code import bound, described, find, is_path, search_recipe_folder
from avuc.study.own_digest import begin, code_prints
from avuc.study.sets import StudyData
from avuc.study.shifted import scaled, shifted_data
from avuc.study.text_file import is_text_file
from avuc.training.model_trainer import with_head

FEW = 8  # examples in the batch


def try_own_code(recipe: Recipe) -> dict[str, str]:
    """Load the data, make the network, take one step of every method and apply every shift.

    An error is one line that names the key of the recipe. Recipes without own code are not tried.

    Args:
        recipe: the study.

    Returns:
        digests of the data and of the code, by name, for `Store.check_data`.
    """
    begin()
    search_recipe_folder(recipe.code_folder)
    study, net = recipe.study, recipe.net
    own_shifts = [name for name in study.shifts if is_path(name)]
    for other in study.others:
        if is_path(other.path):
            offered = {"split": "test"} | recipe.data.offered
            bound(find(other.path, "study.ood"), offered, {}, "study.ood", other.path)
    if not (recipe.data.is_own or net.is_own or own_shifts or study.shift_size):
        return {}
    for name in own_shifts:
        find(name, "study.shifts")
    if net.is_own:
        find(net.name, "net.name")
    data = StudyData(recipe, torch.device("cpu"))
    if recipe.data.is_own:
        _check_data(data)
    some = data.test if recipe.data.is_own else data.validation
    few = some.subset(range(min(FEW, len(some))))
    severities = sorted({min(study.severities), max(study.severities)}) if study.severities else []
    shifted: dict[tuple[str, int], MemoryData] = {}
    # the corruptions of avuc are tested already; a few images show whether they fit the data
    for name in study.shifts if not recipe.data.corruptions_dir else ():
        for severity in severities if is_path(name) else severities[:1]:
            shifted[name, severity] = _try_shift(recipe, few, name, severity)
    for other in study.others:
        if is_path(other.path) or is_text_file(other.path):
            data.prints(TestSet(f"ood:{other.name}"))
            data.load_again(TestSet(f"ood:{other.name}"))
    _try_net(recipe, data, shifted)
    prints = code_prints([net.name, *own_shifts])
    if recipe.data.is_own:  # published data are checked with the results, after their test images are decoded
        prints |= data.training_prints() | data.prints(VALIDATION) | data.prints(CLEAN)
    return prints


def _try_shift(recipe: Recipe, few: MemoryData, name: str, severity: int) -> MemoryData:
    study = recipe.study
    chosen = study.shift_seed, study.profile, study.shift_size
    results = [
        shifted_data(few, name, severity, *chosen, recipe.data.offered) for _ in range(1 + is_path(name))
    ]
    # the set is generated again for later methods and after an interruption, and must then be the same
    if digest_of(results[0]) != digest_of(results[-1]):
        raise InputError(
            f"study.shifts: {name} returns something else if it is called again with the same arguments; take random "
            "numbers from its argument 'generator', and keep no state between calls"
        )
    return results[0]


def _check_data(data: StudyData) -> None:
    source, train, test = data.config.source, data.validation, data.test
    if shapes_of(train) != shapes_of(test):
        raise InputError(
            f"data.source: {source}: one training example is {shapes_of(train)}, one test example {shapes_of(test)}; "
            "give both one shape"
        )
    if train.num_classes != test.num_classes or type(train) is not type(test):
        raise InputError(
            f"data.source: {source}: {train.num_classes} classes in training data, {test.num_classes} in test data, "
            f"as {type(train).__name__} and {type(test).__name__}; both must be alike"
        )
    for part, name in ((train, "held-out"), (test, "test")):
        if missing := int((part.labels == UNLABELLED).sum()):
            raise InputError(
                f"data.source: {source}: {missing} {name} labels are {UNLABELLED}, which is no class; leave these "
                "examples out, or give positions without a label data.ignore_index"
            )
        if not part.num_labelled:
            raise InputError(f"data.source: {source}: none of the {len(part)} {name} examples has a label")
    if not len(test) or train.num_classes < 2:
        raise InputError(f"data.source: {source}: {len(test)} test examples of {train.num_classes} classes are too few")
    if not data.config.evaluate_on_validation:
        check_overlap(source, _in_memory(data.train(1, 0)), train, test)


def _try_net(recipe: Recipe, data: StudyData, shifted: Mapping[tuple[str, int], MemoryData]) -> None:
    config, held = recipe.net, data.validation
    start = seeded_generator(0)
    net = make_net(config, held.num_classes, data.image_shape, None, start, any_inputs=data.any_inputs)
    # one held-out example is too few for batch normalisation
    some = held if len(held) >= FEW or recipe.data.stream else _in_memory(data.train(1, 0))
    batch, labels = _batch(some)
    name = f"net.name: {config.name}"
    try:
        logits = _run(net, batch)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except Exception as error:  # whatever the user's network raises
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
    try:
        check_outputs(logits, Task())
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if recipe.study.shift_size:
        _try_size(net, scaled(some.subset(range(len(labels))), recipe.study.shift_size), tuple(logits.shape), name)
    _try_finite(net, data, logits, name)
    for (shift, severity), examples in shifted.items():
        if is_path(shift) or isinstance(examples, TensorData):
            _try_shifted(net, examples, shift, severity)
    for method in recipe.methods:
        _check_settings(method, held)
    for method in recipe.trained:
        _try_method(recipe, method, net, batch, labels)


def _in_memory(data: MemoryData | Stream) -> MemoryData:
    assert not isinstance(data, Stream)  # only files are streamed, not the user's own source
    return data


def _try_finite(net: nn.Module, data: StudyData, logits: Tensor, name: str) -> None:
    """Refuse NaN and infinite logits: those of the first examples, and of all examples with such inputs."""
    if data.config.is_own:
        training = _in_memory(data.train(1, 0))
        for part, some in (("training", training), ("held-out", data.validation), ("test", data.test)):
            rows = _unusual_rows(some)
            if len(rows) and not _is_finite(_run(net, some.batch(rows[:FEW])[0])):
                raise InputError(
                    f"data.source: {data.config.source}: {len(rows)} of {len(some)} {part} examples have NaN or infinite "
                    f"inputs (first: example {int(rows[0])}), and so are the network's logits; remove or replace them"
                )
    if not _is_finite(logits):
        raise InputError(f"{name} returned NaN or infinite logits for a batch of {len(logits)}, before any training")


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
        return copy.deepcopy(net).eval()(batch)


def _try_shifted(net: nn.Module, data: MemoryData, shift: str, severity: int) -> None:
    """Refuse a shift whose examples the network does not take, or for which it returns no numbers."""
    batch, labels = _batch(data)
    where = f"study.shifts: {shift}: at severity {severity} the network"
    try:
        logits = _run(net, batch)
    except Exception as error:  # whatever the user's network raises
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
    except Exception as error:  # whatever the user's network raises
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
    if labels.ndim == 2 and logits.ndim == 2:
        each = ", such as labels[:, 0]" if labels.shape[1] == 1 else ", such as .argmax(1) of one-hot labels"
        return f"; labels (N, {labels.shape[1]}) are labels of tokens: for one label for each example use (N,){each}"
    if tuple(logits.shape) in ((len(labels), 1), (len(labels),)) and expected == (len(labels), 2):
        return "; one logit z for two classes is the pair of logits (0, z)"
    return ""


def _try_method(recipe: Recipe, config: MethodConfig, net: nn.Module, batch: Any, labels: Tensor) -> None:
    method = config.method
    assert method is not None
    where = f"methods.{config.name}"
    fixed = recipe.net.is_own and isinstance(find(recipe.net.name, "net.name"), nn.Module)
    if fixed and method.members > 1:
        raise InputError(f"{where}: an ensemble needs different starts; give a function that makes the network")
    if config.skip_training:
        return
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise InputError(
            f"{where}: the network has no weights that require a gradient, so it cannot be trained; set "
            "requires_grad_(True), or skip_training = true"
        )
    if config.objective.kind == "euc" and not isinstance(batch, Tensor):
        raise InputError(f"{where}: the objective euc needs a network that takes one tensor, not a mapping")
    try:
        model = method.build(with_head(copy.deepcopy(net), config.objective)).train()
        with torch.random.fork_rng(devices=[]):
            loss = config.objective.loss(math.prod(labels.shape))
            loss(method.logits(model, batch), labels, method.kl(model)).total.backward()
    except Exception as error:  # whatever the user's network raises
        raise InputError(f"{where}: a step on one batch failed: {described(error)}") from error


def _batch(data: MemoryData) -> tuple[Any, Tensor]:
    """Return the first few examples and their labels; missing labels of images become 0."""
    rows = torch.arange(min(FEW, len(data)))
    inputs, labels = data.batch(rows)
    return inputs, labels if isinstance(data, TensorData) else labels.clamp(min=0)


def _shapes(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return str(tuple(batch.shape))
    return str({name: tuple(tensor.shape) for name, tensor in batch.items()})
