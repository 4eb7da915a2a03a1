"""What would make a prediction silently wrong is refused in one line, or warned about."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from avuc.bayes import to_bayesian
from avuc.core.errors import InputError
from avuc.data.arrays import as_input
from avuc.methods.dropout import Dropout, DropoutPosterior
from avuc.methods.ensemble import EnsemblePosterior
from avuc.methods.vanilla import DeterministicPosterior
from avuc.nets import mlp, small_cnn
from avuc.prediction import predict
from avuc.prediction.inputs import Batches
from avuc.prediction.predictor import Predictor, Reading


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(rows: int = 6, channels: int = 3) -> Tensor:
    return torch.randint(256, (rows, 12, 12, channels), dtype=torch.uint8, generator=generator())


def net(channels: int = 3) -> nn.Module:
    return small_cnn(5, (12, 12, channels), width=4, generator=generator()).eval()


def flat() -> nn.Module:
    """A network that takes any order of the same numbers."""
    return mlp(5, (12, 12, 3), generator=generator()).eval()


def one(module: nn.Module) -> DeterministicPosterior:
    return DeterministicPosterior(module)


class Returns(nn.Module):
    """A network whose forward returns `after` of its logits."""

    def __init__(self, after: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.after = net(), after

    def forward(self, x: Tensor) -> Any:
        return self.after(self.net(x))


def soft(module: nn.Module) -> nn.Module:
    return nn.Sequential(module, nn.Softmax(-1))


class Own:
    """A posterior that draws this function."""

    def __init__(self, function: Callable[[Tensor], Tensor], num_draws: Any = None) -> None:
        self.function, self.num_draws = function, num_draws

    def draw(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        return self.function


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no posterior": (lambda: predict("net", images()), "a network .nn.Module.*found str, which has no draw"),
    "a class": (lambda: predict(nn.Linear, images()), "found the class Linear"),
    "a training": (lambda: predict(SimpleNamespace(posterior=one(net())), images()), "num_draws; pass its .posterior"),
    "weights": (lambda: predict(net().state_dict(), images()), r"found OrderedDict.*; load .*net.load_state_dict"),
    "a table of numbers": (
        lambda: predict(nn.Linear(4, 2), torch.zeros(3, 5)),
        r"the network cannot take inputs \(3, 5\) torch.float32 .*; give them the shape and type .* takes$",
    ),
    "nothing at all": (lambda: predict(None, images()), "found NoneType"),
    "no networks": (lambda: predict([], images()), "at least one network"),
    "a list of other things": (lambda: predict([net(), "net"], images()), "found str"),
    "a list of images": (lambda: predict(one(net()), [[1.0]]), "found list"),
    "one number": (lambda: predict(one(net()), torch.tensor(1.0)), "found a 0-dimensional one"),
    "no images": (lambda: predict(one(net()), images(0)), "at least one image"),
    "no images, array": (lambda: predict(one(net()), images(0).numpy()), "at least one image"),
    "bytes, channels first": (
        lambda: predict(one(flat()), images().permute(0, 3, 1, 2)),
        r"\(6, 3, 12, 12\) with the channels first; use images.permute\(0, 2, 3, 1\)",
    ),
    "bytes, no channels": (lambda: predict(one(flat()), images()[..., 0]), r"found \(6, 12, 12\)"),
    "other channels": (lambda: predict(one(net(1)), images()), r"cannot take images \(6, 12, 12, 3\) torch.uint8"),
    "float64": (
        lambda: predict(one(net()), as_input(images()).double()),
        r"float64 .*its weights are float32: convert them with .to\(torch.float32\)",
    ),
    "float64, array": (lambda: predict(one(net()), as_input(images()).double().numpy()), "its weights are float32"),
    "whole numbers": (lambda: predict(one(net()), as_input(images()).long()), "its weights are float32.*or pass uint8"),
    "labels, too few": (lambda: predict(one(net()), images(), torch.zeros(5).long()), r"one per image, \(6,\)"),
    "labels, one-hot": (lambda: predict(one(net()), images(), torch.zeros(6, 5).long()), r"found \(6, 5\)"),
    "labels, floats": (lambda: predict(one(net()), images(), torch.full((6,), 0.5)), "found 0.5: real-valued targets"),
    "labels, out of range": (lambda: predict(one(net()), images(), torch.full((6,), 5)), "labels must be in 0…4"),
    "no samples": (lambda: predict(one(net()), images(), samples=0), "positive whole number"),
    "half a sample": (
        lambda: Predictor(to_bayesian(net())).read(images(), None, [Reading(samples=2.5)]),
        "positive whole number, found 2.5",
    ),
    "negative seed": (lambda: predict(to_bayesian(net()), images(), seed=-1), "seed must be .* found -1"),
    "half a seed": (lambda: predict(to_bayesian(net()), images(), seed=0.5), "seed must be .* found 0.5"),
    "no draws": (lambda: predict(Own(flat(), 0), as_input(images())), "num_draws must be None or .* found 0"),
    "no members": (lambda: predict(Own(flat(), 3), as_input(images())), r"num_draws=3 but no member\(index\)"),
    "NaN": (lambda: predict(one(net()), as_input(images()) * float("nan")), "NaN"),
    "softmax": (
        lambda: predict(one(soft(net())), images()),
        "outputs look like probabilities .*: remove the network's last softmax",
    ),
    "softmax, one image": (lambda: predict(one(soft(net())), images(1)), "outputs look like probabilities"),
    "softmax, drawn": (lambda: predict(to_bayesian(soft(net())), images(), samples=3), "look like probabilities"),
    "softmax, last layer": (
        lambda: Predictor(to_bayesian(soft(net()), layers="last"), samples=3).logits(images()),
        "look like probabilities",
    ),
    "classes": (lambda: predict(one(Returns(lambda z: z.argmax(-1, keepdim=True))), images()), "floating-point"),
    "two outputs": (lambda: predict(one(Returns(lambda z: (z, 2 * z))), images()), r"tuple .*\(6, 5\), \(6, 5\)"),
    "no logits": (lambda: predict(one(Returns(lambda z: {"scores": z})), images()), "dict with the keys 'scores'"),
    "an array": (lambda: predict(one(Returns(lambda z: z.numpy())), images()), "returns a ndarray"),
    "nothing": (lambda: predict(one(Returns(lambda z: None)), images()), "returns a NoneType"),
    "no device": (
        lambda: predict(one(net()), images(), device="cuda:99" if torch.cuda.is_available() else "cuda"),
        "device",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


class Named(NamedTuple):
    hidden: Tensor
    logits: Tensor


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "a tuple of one": lambda z: (z,),
    "a list of one": lambda z: [z],
    "a loss and logits": lambda z: (z.sum(), z),
    "logits and a feature map": lambda z: (z, z[..., None, None]),
    "a dictionary": lambda z: {"hidden": 2 * z, "logits": z},
    "an ordered dictionary": lambda z: OrderedDict(loss=z.sum(), logits=z),
    "an object": lambda z: SimpleNamespace(hidden=2 * z, logits=z),
    "a named tuple": lambda z: Named(2 * z, z),
}


@pytest.mark.parametrize("case", RETURNED)
def test_logits_are_found_in_what_a_network_returns(case: str) -> None:
    module = Returns(RETURNED[case])
    for make in (
        one,
        lambda part: to_bayesian(part, layers="last"),
        lambda part: DropoutPosterior(Dropout(0.3).build(part)),
    ):
        # with and without batches that end early
        expected = predict(make(Returns(lambda z: z)), images(), samples=3, batch_size=4)
        found = predict(make(module), images(), samples=3, batch_size=4)
        torch.testing.assert_close(found.probs, expected.probs)
    assert Predictor(one(module)).logits(images()).shape == (1, 6, 5)


def batch_statistics() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 5), nn.BatchNorm1d(5, track_running_stats=False))


WARNED: dict[str, tuple[Callable[[], object], str]] = {
    "bytes as floats": (
        lambda: predict(one(net()), images().permute(0, 3, 1, 2).float()),
        "whole numbers up to 25. and look like bytes",
    ),
    "channels last": (lambda: predict(one(flat()), images().float() / 255), "seem to have the channels last"),
    "channels last, array": (lambda: predict(one(flat()), (images() / 255).numpy()), "have the channels last"),
    "statistics of the batch": (lambda: predict(one(batch_statistics()), images()), "depends on the other images"),
    "dropout of rate 0": (
        lambda: predict(DropoutPosterior(Dropout(0.0).build(net())), images(), samples=4),
        "all 4 samples give the same prediction",
    ),
    "own dropout of rate 0": (
        lambda: predict(DropoutPosterior.of_own_layers(nn.Sequential(flat(), nn.Dropout(0.0))), images(), samples=4),
        "no spread",
    ),
    "no noise": (lambda: predict(to_bayesian(net(), initial_std=1e-12), images(), samples=8), "no spread"),
    "a function that ignores the generator": (lambda: predict(Own(flat()), as_input(images()), samples=2), "no spread"),
}


@pytest.mark.parametrize("case", WARNED)
def test_warned_once(case: str) -> None:
    call, message = WARNED[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    (warning,) = caught
    assert warning.category is UserWarning
    assert __import__("re").search(message, str(warning.message))


QUIET: dict[str, Callable[[], object]] = {
    "bytes": lambda: predict(one(net()), images()),
    "black images": lambda: predict(one(net()), torch.zeros(6, 3, 12, 12)),
    "black and white": lambda: predict(one(net()), torch.ones(6, 3, 12, 12).tril()),
    "normalised": lambda: predict(one(net()), 4 * as_input(images()) - 2),
    "log-softmax": lambda: predict(one(nn.Sequential(net(), nn.LogSoftmax(-1))), images()),
    "one draw": lambda: predict(to_bayesian(net()), images(), samples=1),
    "an ensemble of twins": lambda: predict(EnsemblePosterior([one(net()), one(net())]), images()),
    "features": lambda: predict(one(nn.Linear(4, 3)), torch.arange(12.0).view(3, 4)),
    "fewer members than samples": lambda: predict(EnsemblePosterior([one(net())]), images(), samples=128),
}


@pytest.mark.parametrize("case", QUIET)
def test_not_warned(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QUIET[case]()


def test_a_predictor_refuses_probabilities_each_time() -> None:
    predictor = Predictor(one(soft(net())))
    for _ in range(2):
        with pytest.raises(InputError, match="look like probabilities"):
            predictor(images())


@pytest.mark.parametrize(
    "labels", [[0, 1, 2, 3, 4, 0], np.array([0, 1, 2, 3, 4, 0], ">i2"), torch.arange(6)[:, None] % 5]
)
def test_labels_of_any_kind(labels: Any) -> None:
    assert predict(one(net()), images(), labels).labels.tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("shape", ["tensor", "array", "big-endian", "backwards", "read-only"])
def test_arrays_of_any_kind(shape: str) -> None:
    x = as_input(images())
    expected = predict(one(net()), x)
    array = x.contiguous().numpy()
    given: Any = {
        "tensor": x,
        "array": array,
        "big-endian": array.astype(">f4"),
        "backwards": array[::-1].copy()[::-1],
        "read-only": array.copy(),
    }[shape]
    if shape == "read-only":
        given.flags.writeable = False
    torch.testing.assert_close(predict(one(net()), given).probs, expected.probs, rtol=0, atol=1e-6)


def test_a_net_as_a_draw_is_evaluated() -> None:
    """In training mode it would not be a function of the image: batch statistics, dropout, and a net that changes."""
    module = nn.Sequential(net(), nn.Dropout(0.5)).train()
    state = {key: value.clone() for key, value in module.state_dict().items()}
    found = predict(Own(module, 1), as_input(images()))
    assert torch.equal(found.probs, predict(one(module), images()).probs)
    assert all(torch.equal(value, state[key]) for key, value in module.state_dict().items())
    assert module.training


def test_a_net_left_in_training_mode_predicts_as_in_evaluation() -> None:
    for make in (
        lambda module: one(module),
        lambda module: to_bayesian(module, layers="last"),
        lambda module: DropoutPosterior(Dropout(0.3).build(module)),
    ):
        left, right = make(net().train()), make(net().eval())
        left.train()
        assert torch.equal(predict(left, images(), samples=3).probs, predict(right, images(), samples=3).probs)


def test_an_ensemble_that_grows_is_asked_for_all_its_members() -> None:
    members = [one(small_cnn(5, (12, 12, 3), width=4, generator=generator(seed))) for seed in range(3)]
    posterior = EnsemblePosterior(members[:2])
    predictor = Predictor(posterior)
    assert predictor(images()).samples == 2
    posterior.posteriors.append(members[2])
    found = predictor(images())
    assert found.samples == 3
    assert torch.equal(found.probs, predict(EnsemblePosterior(members), images()).probs)


def test_images_of_a_gpu_are_waited_for_on_the_way_to_the_host() -> None:
    """A copy towards the host that is not waited for may be read before it arrives."""
    asked: list[bool] = []

    class Watched(torch.Tensor):
        def to(self, *args: Any, non_blocking: bool = False, **kwargs: Any) -> Tensor:
            asked.append(non_blocking)
            return super().to(*args, **kwargs)

    batches = Batches(torch.rand(4, 3).as_subclass(Watched), None, 2, torch.device("cpu"))
    for batch in batches:
        assert batch.input.args[0].shape == (2, 3)
    assert asked == [False, False]


def test_the_same_seed_gives_the_same_draws_and_another_seed_others() -> None:
    posterior = to_bayesian(net(), initial_std=0.3)
    first, again, other = (predict(posterior, images(), samples=3, seed=seed).probs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-4
    assert np.isfinite(first.numpy()).all()


def test_a_network_around_a_posterior_is_refused() -> None:
    """It would draw new weights for each batch: other predictions at each call, and no mutual information."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = to_bayesian(nn.Linear(4, 3))

        def forward(self, rows: Tensor) -> Tensor:
            return self.net(rows)

    model, rows = Around(), torch.rand(5, 4)
    for wrong in (model, [model, nn.Linear(4, 3)]):
        with pytest.raises(InputError, match=r"Around has a posterior inside, 'net', .*: pass model\.net"):
            predict(wrong, rows, progress=False)
    assert predict(model.net, rows, samples=4, progress=False).samples == 4
    several = predict([model.net, to_bayesian(nn.Linear(4, 3))], rows, samples=4, progress=False)
    assert several.samples == 4  # posteriors may be members of an ensemble


def test_layers_without_values_are_refused() -> None:
    net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    with pytest.raises(InputError, match=r"Sequential: '0\.weight' has no values yet: the network is not trained"):
        predict(net, torch.rand(4, 5))
    assert net[0].has_uninitialized_params()  # it is left as it was
    net(torch.rand(4, 5))
    assert predict(net, torch.rand(4, 5), progress=False).probs.shape == (4, 3)
