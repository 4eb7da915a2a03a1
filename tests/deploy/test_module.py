"""as_module: the same predictions as `predict`, and the same after every export."""

from __future__ import annotations

import io

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from avuc.bayes import to_bayesian
from avuc.calibration import CALIBRATORS, MultiLabelCalibrator, TemperatureScaling, VectorScaling
from avuc.core.errors import InputError
from avuc.deploy import as_module
from avuc.deploy.draws import SharedTrunk
from avuc.deploy.module import OUTPUTS
from avuc.deploy.rescaling import Blend, rescaling_of
from avuc.prediction import predict
from avuc.predictions import Predictions

KINDS = [
    "network", "ensemble", "mean field", "radial", "last layer", "tied", "recurrent", "swag", "dropout",
    "last-layer dropout", "own dropout",
]  # fmt: skip
ONNX_WARNING = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")


def close(found, expected, tolerance):
    for name, one, other in zip(OUTPUTS, found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=tolerance, rtol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_predictions_are_those_of_predict(kind, posteriors, images):
    posterior = posteriors(kind)
    module = as_module(posterior, samples=4, seed=3, outputs=OUTPUTS, example=images[:1])
    found = dict(zip(OUTPUTS, module(images), strict=True))
    wanted = predict(posterior, images, samples=4, seed=3, progress=False)
    for name in ("probs", "entropy", "expected_entropy", "mutual_information", "confidence"):
        torch.testing.assert_close(found[name], getattr(wanted, name), atol=1e-6, rtol=1e-5)
    assert torch.equal(found["predicted"], wanted.probs.argmax(1))
    torch.testing.assert_close(found["logits"], wanted.probs.log(), atol=1e-5, rtol=1e-5)
    assert module.draws.samples == {"network": 1, "ensemble": 2}.get(kind, 4)
    # the last layer alone is sampled: the network before it is there once
    assert isinstance(module.draws, SharedTrunk) == kind.startswith("last")
    other = as_module(posterior, samples=4, seed=4, example=images[:1])(images)[0]
    assert torch.equal(other, found["probs"]) == (kind in ("network", "ensemble"))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_calibrator_acts_on_each_sample(name, posteriors, images):
    posterior = posteriors("mean field")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    calibrator = CALIBRATORS[name]().fit(2 * (rng.normal(size=(200, 3)) + np.eye(3)[labels]), labels)
    probs, entropy = as_module(posterior, calibrator, samples=5)(images)
    wanted = predict(posterior, images, samples=5, calibrator=calibrator, progress=False)
    torch.testing.assert_close(probs, wanted.probs, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(entropy, wanted.entropy, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_half_precision_is_for_the_network_and_not_for_the_calibrator(name):
    """Places of a map, or a temperature, rounded to half precision move probabilities by up to 0.1."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 2000)
    calibrator = CALIBRATORS[name]().fit(2 * (rng.normal(size=(2000, 5)) + 1.5 * np.eye(5)[labels]), labels)
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).mul_(3).bfloat16()
    wanted = calibrator.transform(logits.float()).softmax(-1)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        module = as_module(nn.Identity(), calibrator, outputs=("probs",)).to(dtype)
        exact = calibrator.transform(logits.double()).softmax(-1).float() if dtype == torch.float64 else wanted
        torch.testing.assert_close(module(logits.to(dtype))[0].float(), exact, atol=1e-6, rtol=1e-5)
        assert all(each.dtype in (torch.float32, torch.float64, torch.int64) for each in module.rescaling.buffers())
    module = as_module(nn.Identity(), calibrator, outputs=("probs",))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(module(logits.float())[0], wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_export_with_any_batch_size(kind, posteriors, images):
    scaler = TemperatureScaling.identity(16 if kind == "own dropout" else 3)  # its number of outputs
    scaler.temperature_ = 1.7
    module = as_module(posteriors(kind), scaler, samples=2, outputs=OUTPUTS, example=images[:1])
    batch = torch.export.Dim("batch")
    exported = torch.export.export(module, (images,), dynamic_shapes=({0: batch},)).module()
    for size in (2, 9):
        more = torch.rand(size, 1, 8, 8)
        close(exported(more), module(more), 1e-6)


@pytest.mark.parametrize("kind", ["mean field", "last layer", "dropout"])
def test_torchscript(kind, posteriors, images):
    module = as_module(posteriors(kind), samples=3, outputs=OUTPUTS, example=images[:1])
    traced = torch.jit.trace(module, images)
    more = torch.rand(9, 1, 8, 8)
    close(traced(more), module(more), 1e-6)


@ONNX_WARNING
@pytest.mark.parametrize("kind", ["mean field", "last layer", "dropout"])
def test_onnx(kind, posteriors, images, tmp_path):
    if kind == "last layer":
        pytest.importorskip("torch", "2.11", reason="the exporter of older versions refuses batches of any size here")
    logits = 2 * torch.eye(3).repeat(4, 1) + torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
    vector = VectorScaling().fit(logits, [0, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 0])
    module = as_module(posteriors(kind), vector, samples=2, outputs=OUTPUTS, example=images[:1])
    torch.onnx.export(
        module,
        (images,),
        tmp_path / "net.onnx",
        dynamo=True,
        input_names=["images"],
        output_names=list(module.outputs),
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == list(OUTPUTS)
    for size in (2, 9):
        more = torch.rand(size, 1, 8, 8)
        close(session.run(None, {"images": more.numpy()}), module(more), 1e-5)


LEGACY_WARNINGS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning"
)


def legacy_session(module, inputs):
    """Return the module in onnxruntime, exported by the tracing exporter, with any batch size."""
    file = io.BytesIO()
    names = {"input_names": ["inputs"], "output_names": list(module.outputs)}
    torch.onnx.export(module, (inputs,), file, dynamo=False, dynamic_axes={"inputs": {0: "batch"}}, **names)
    return onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])


@LEGACY_WARNINGS
@pytest.mark.parametrize("kind", KINDS)
def test_legacy_onnx_exporter(kind, posteriors, images):
    """It wrote negative dimensions into the file, which onnxruntime refused."""
    module = as_module(posteriors(kind), samples=2, outputs=OUTPUTS, example=images[:1])
    session = legacy_session(module, images)
    for size in (1, 9):
        more = torch.rand(size, 1, 8, 8)
        close(session.run(None, {"inputs": more.numpy()}), module(more), 1e-5)


@LEGACY_WARNINGS
@pytest.mark.parametrize("name", [*CALIBRATORS, "blend"])
def test_legacy_onnx_exporter_with_a_calibrator(name):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    scores = 2 * (rng.normal(size=(200, 3)) + np.eye(3)[labels])
    if name == "blend":
        parts = [TemperatureScaling().fit(scores, labels), VectorScaling().fit(scores, labels)]
        calibrator = Blend([rescaling_of(part) for part in parts], [0.3, 0.7])
    else:
        calibrator = CALIBRATORS[name]().fit(scores, labels)
    module = as_module(to_bayesian(nn.Linear(4, 3)), calibrator, samples=2, outputs=OUTPUTS)
    session = legacy_session(module, torch.rand(5, 4))
    for size in (1, 9):
        rows = 3 * torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
        close(session.run(None, {"inputs": rows.numpy()}), module(rows), 1e-5)


@LEGACY_WARNINGS
@pytest.mark.parametrize("name", ["isotonic", "histogram", "venn-abers"])
@pytest.mark.parametrize("factor", [1e-3, 300.0, 1e4, 1e6])
def test_onnx_of_a_calibrator_for_logits_of_any_scale(name, factor):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    scores = (factor * (rng.normal(size=(200, 3)) + np.eye(3)[labels])).astype(np.float32)
    calibrator = CALIBRATORS[name]().fit(scores, labels)
    session = legacy_session(as_module(nn.Identity(), calibrator, outputs=("probs",)), torch.rand(5, 3))
    for rows in (scores, (factor * rng.normal(size=(100, 3))).astype(np.float32)):
        np.testing.assert_allclose(session.run(None, {"inputs": rows})[0], calibrator.predict_proba(rows), atol=1e-6)


@LEGACY_WARNINGS
@pytest.mark.parametrize("layout", ["one logit", "labels", "pixels", "tokens"])
def test_legacy_onnx_exporter_of_other_layouts(layout):
    net, inputs, options = {
        "one logit": (nn.Linear(4, 1), torch.rand(5, 4), {}),
        "labels": (nn.Linear(4, 3), torch.rand(5, 4), {"calibrator": label_calibrator(), "task": "multilabel"}),
        "pixels": (nn.Conv2d(2, 5, 1), torch.rand(5, 2, 4, 6), {}),
        "tokens": (nn.Linear(4, 5), torch.rand(5, 7, 4), {"class_dim": -1}),
    }[layout]
    module = as_module(to_bayesian(net), samples=2, outputs=OUTPUTS, **options)
    session = legacy_session(module, inputs)
    more = torch.rand(9, *inputs.shape[1:])
    close(session.run(None, {"inputs": more.numpy()}), module(more), 1e-5)


@LEGACY_WARNINGS
@pytest.mark.parametrize("method", [None, "temperature", "isotonic"])
def test_onnx_of_labels_that_are_almost_certain(method):
    """onnxruntime computes LogSigmoid as the logarithm of a rounded sigmoid: the logit of 20 was infinite."""
    calibrator = None
    if method is not None:
        rows = 3 * torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        labels = torch.rand(300, 4, generator=torch.Generator().manual_seed(1)) < torch.sigmoid(rows)
        calibrator = MultiLabelCalibrator(method).fit(rows, labels.long())
    module = as_module(nn.Identity(), calibrator, samples=1, outputs=OUTPUTS, task="multilabel")
    session = legacy_session(module, torch.rand(5, 4))
    for more in ([[20.0, -20.0, 90.0, -90.0]], [[16.0, -17.0, 1e4, -1e4], [0.0, 0.01, 2e-4, -3e38]]):
        expected = module(torch.tensor(more))
        for name, got, want in zip(OUTPUTS, session.run(None, {"inputs": np.float32(more)}), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
        if method is None:
            np.testing.assert_allclose(expected[OUTPUTS.index("logits")], np.float32(more), rtol=1e-5, atol=1e-6)


def test_formulas_in_float64():
    """Against Predictions, which has the definitions, on a function of known logits."""
    logits = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    logits[:, 0, 1] = -torch.inf  # a class that is impossible

    class Known:
        num_draws = 5

        def member(self, index):
            return lambda rows: logits[index][rows]

        def draw(self, generator):
            raise AssertionError("members are used once each")

    scaler = TemperatureScaling.identity(4)
    scaler.temperature_ = 0.7
    found = as_module(Known(), scaler, outputs=OUTPUTS)(torch.arange(7))
    wanted = Predictions.from_samples(logits, calibrator=scaler)
    for name, value in zip(OUTPUTS[:5], found, strict=False):
        torch.testing.assert_close(value.double(), getattr(wanted, name).double(), atol=1e-6, rtol=1e-6)
    assert not torch.stack([value.double().isnan().any() for value in found]).any()


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_one_logit_means_two_classes(shape):
    scores = torch.linspace(-2, 2, 6).reshape(shape)
    probs, entropy = as_module(nn.Identity())(scores)
    torch.testing.assert_close(probs[:, 1], scores.flatten().sigmoid())
    assert probs.shape == (6, 2)
    assert entropy.shape == (6,)


def test_dense_outputs_and_language_models():
    net = nn.Conv2d(2, 5, 1)
    images = torch.rand(3, 2, 4, 6)
    module = as_module(to_bayesian(net), samples=3, outputs=("probs", "entropy", "logits", "predicted"))
    probs, entropy, logits, predicted = module(images)
    assert probs.shape == logits.shape == (3, 5, 4, 6)
    assert entropy.shape == predicted.shape == (3, 4, 6)
    torch.testing.assert_close(probs.sum(1), torch.ones(3, 4, 6))
    assert torch.equal(predicted, probs.argmax(1))
    tokens = torch.rand(3, 7, 4)
    words, uncertainty = as_module(to_bayesian(nn.Linear(4, 5)), samples=2, class_dim=-1)(tokens)
    assert words.shape == (3, 7, 5)
    assert uncertainty.shape == (3, 7)
    torch.testing.assert_close(words.sum(-1), torch.ones(3, 7))


def label_calibrator():
    """Return a temperature for each of three labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (80, 3))
    return MultiLabelCalibrator().fit(3 * (rng.normal(size=(80, 3)) + 2 * labels - 1), labels)


def test_independent_labels(images):
    calibrator = label_calibrator()
    posterior = to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), initial_std=0.3)
    module = as_module(posterior, calibrator, samples=4, outputs=OUTPUTS, task="multilabel")
    found = dict(zip(OUTPUTS, module(images), strict=True))
    wanted = predict(posterior, images, samples=4, calibrator=calibrator, task="multilabel", progress=False)
    torch.testing.assert_close(found["probs"], wanted.probs, atol=1e-6, rtol=1e-5, check_dtype=False)
    p = found["probs"].double()
    torch.testing.assert_close(found["entropy"].double(), -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)))
    assert torch.equal(found["predicted"], (p > 0.5).long())
    torch.testing.assert_close(found["confidence"].double(), torch.maximum(p, 1 - p))
    torch.testing.assert_close(found["logits"].double(), p.logit(), atol=1e-4, rtol=1e-4)
    assert (found["mutual_information"] > 0).all()
    for wrong in ({"calibrator": calibrator}, {"calibrator": TemperatureScaling.identity(3), "task": "multilabel"}):
        with pytest.raises(InputError, match="belong together"):
            as_module(posterior, **wrong)


@ONNX_WARNING
def test_independent_labels_are_exported(tmp_path):
    """torch.export, TorchScript and ONNX of a multi-label module, with a temperature for each label."""
    calibrator = label_calibrator()
    posterior = to_bayesian(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), layers="last", initial_std=0.3)
    module = as_module(posterior, calibrator, samples=2, outputs=OUTPUTS, task="multilabel")
    rows, batch = torch.rand(6, 4), {0: torch.export.Dim("batch")}
    exported = torch.export.export(module, (rows,), dynamic_shapes=(batch,)).module()
    traced = torch.jit.trace(module, rows)
    path = tmp_path / "labels.onnx"
    names = {"input_names": ["rows"], "output_names": list(OUTPUTS)}
    torch.onnx.export(module, (rows,), path, dynamo=True, dynamic_shapes=(batch,), verbose=False, **names)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (2, 9):
        more = torch.rand(size, 4)
        wanted = module(more)
        assert {tuple(value.shape) for value in wanted} == {(size, 3)}
        close(exported(more), wanted, 1e-6)
        close(traced(more), wanted, 1e-6)
        close(session.run(None, {"rows": more.numpy()}), wanted, 1e-5)


def test_a_calibrator_of_another_model_is_refused():
    """One logit would broadcast over three temperatures, and one temperature fits any number of classes."""
    rows = torch.rand(5, 4)
    scaler = TemperatureScaling.identity(10)
    scaler.temperature_ = 2.0
    with pytest.raises(InputError, match="fitted on 10 classes or labels; the network has 3"):
        as_module(nn.Linear(4, 3), scaler)(rows)
    with pytest.raises(InputError, match=r"fitted on 10 .* the network has 2"):  # one logit is two classes
        as_module(nn.Linear(4, 1), scaler)(rows)
    labels = label_calibrator()
    with pytest.raises(InputError, match=r"fitted on 3 .* the network has 1"):
        as_module(nn.Linear(4, 1), labels, task="multilabel")(rows)
    with pytest.raises(InputError, match=r"fitted on 3 .* the network has 1"):
        torch.jit.trace(as_module(nn.Linear(4, 1), labels, task="multilabel"), rows)


def test_labels_with_a_module_as_calibrator():
    net, rows = nn.Linear(4, 3), torch.rand(5, 4)
    halved = nn.Linear(3, 3, bias=False)
    halved.weight = nn.Parameter(torch.eye(3) / 2)
    torch.testing.assert_close(as_module(net, halved, task="multilabel")(rows)[0], (net(rows) / 2).sigmoid())
    with pytest.raises(InputError, match=r"multi-label logits must be \(N, L\)"):
        as_module(nn.Flatten(0), task="multilabel")(rows[:, :1])


def test_a_shared_trunk_with_more_dimensions():
    posterior = to_bayesian(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5)), layers="last", initial_std=0.5)
    module = as_module(posterior, samples=3, class_dim=-1)
    assert isinstance(module.draws, SharedTrunk)
    tokens = torch.rand(2, 7, 4)
    flat = as_module(posterior, samples=3)(tokens.flatten(0, 1))[0]
    torch.testing.assert_close(module(tokens)[0], flat.unflatten(0, (2, 7)))


def test_mappings_and_outputs_with_logits():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, ids, mask):
            return {"loss": torch.tensor(0.0), "logits": self.inner(ids * mask)}

    batch = {"ids": torch.rand(5, 4), "mask": torch.ones(5, 4)}
    model = Model()
    torch.testing.assert_close(as_module(model)(batch)[0], model(**batch)["logits"].softmax(-1))
    doubled = as_module(model, logits=lambda out: 2 * out["logits"])(batch)[0]
    torch.testing.assert_close(doubled, (2 * model(**batch)["logits"]).softmax(-1))


def test_later_training_does_not_change_the_module(posteriors, images):
    for kind in ("network", "mean field", "last layer", "dropout", "swag"):
        posterior = posteriors(kind)
        grads = [weight.requires_grad for weight in posterior.parameters()]
        module = as_module(posterior, samples=2, example=images[:1])
        before = module(images)[0]
        assert [weight.requires_grad for weight in posterior.parameters()] == grads
        with torch.no_grad():
            for tensor in [*posterior.parameters(), *posterior.buffers()]:
                if tensor.is_floating_point():
                    tensor.add_(1.0)
        assert torch.equal(module(images)[0], before), kind
        assert not any(weight.requires_grad for weight in module.parameters())


def test_evaluation_mode_stays(posteriors, images):
    module = as_module(posteriors("network"))
    before = module(images)[0]
    assert not module.train().training
    assert torch.equal(module(images)[0], before)
    assert not any(layer.training for layer in module.modules())


def test_the_state_has_every_mask(posteriors, images):
    one = as_module(posteriors("dropout"), samples=2, seed=0, example=images[:1])
    other = as_module(posteriors("dropout"), samples=2, seed=1, example=images[:1])
    assert not torch.equal(one(images)[0], other(images)[0])
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(images)[0], other(images)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": ("probs", "variance")}, "outputs: expected some of probs, entropy"),
        ({"outputs": ()}, "outputs: expected some of"),
        ({"samples": 0}, "samples must be a whole number above 0"),
        ({"samples": True}, "samples must be a whole number"),
        ({"seed": -1}, "seed"),
        ({"calibrator": TemperatureScaling()}, "is not fitted"),
        ({"calibrator": "temperature"}, "calibrator: expected one of avuc.calibration"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        as_module(nn.Linear(2, 3), **arguments)


def test_wrong_models(posteriors):
    with pytest.raises(InputError, match="found str"):
        as_module("resnet")
    with pytest.raises(InputError, match="empty list"):
        as_module([])
    with pytest.raises(InputError, match=r"give one input of the network, example=images\[:1\]"):
        as_module(posteriors("dropout"))
