"""The AvUC family against a per-sample float64 loop, and at every edge it must survive."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, auavuc_loss, avuc_loss, elbo_loss
from avuc.losses.analytic import EMPTY_MASS
from avuc.losses.quadrants import avuc_quadrants
from avuc.losses.softmax_statistics import softmax_statistics

VARIANTS = ["paper", "stopgrad", "monotone", "soft"]
HARD = ["paper", "stopgrad", "monotone"]


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    e = [math.exp(z - top) for z in row]
    return [x / sum(e) for x in e]


def loop_probs(logits: Tensor) -> list[list[float]]:
    """Mean softmax over draws, by plain loops."""
    draws = logits.double().tolist() if logits.ndim == 3 else [logits.double().tolist()]
    rows = []
    for i in range(len(draws[0])):
        each = [softmax(draw[i]) for draw in draws]
        rows.append([sum(p[k] for p in each) / len(each) for k in range(len(each[0]))])
    return rows


def loop_entropy(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def loop_weights(p: float, u: float, right: bool, variant: str) -> tuple[float, float]:
    if variant == "monotone":
        return p * (1 - math.tanh(u)), (1 - p) * math.tanh(u)
    if variant == "soft":
        return 1 - math.tanh(u), math.tanh(u)
    share = p if right else 1 - p
    return share * (1 - math.tanh(u)), share * math.tanh(u)


def loop_cells(probs: list[list[float]], labels: list[int], threshold: float, variant: str) -> dict[str, float]:
    cells = dict.fromkeys(("ac", "au", "ic", "iu"), 0.0)
    for p, y in zip(probs, labels, strict=True):
        u = loop_entropy(p)
        right = p.index(max(p)) == y
        certain, uncertain = loop_weights(max(p), u, right, variant)
        s = 1.0 if u > threshold else 0.0
        if variant == "soft":
            e, k = u / math.log(len(p)), threshold / math.log(len(p))
            s = 1 / (1 + ((1 - e) * k / (e * (1 - k))) ** 10) if e > 0 else 0.0
        first = "a" if right else "i"
        cells[first + "c"] += (1 - s) * certain
        cells[first + "u"] += s * uncertain
    return cells


def loop_loss(logits: Tensor, labels: Tensor, threshold: float, variant: str) -> float:
    c = loop_cells(loop_probs(logits), labels.tolist(), threshold, variant)
    return math.log(1 + (c["au"] + c["ic"]) / (c["ac"] + c["iu"]))


def loop_area(logits: Tensor, labels: Tensor, variant: str, points: int) -> float:
    probs = loop_probs(logits)
    us = [loop_entropy(p) for p in probs]
    values = []
    for j in range(points):
        t = j / (points - 1)
        threshold = max(us) if j == points - 1 else min(us) + t * (max(us) - min(us))
        c = loop_cells(probs, labels.tolist(), threshold, variant)
        values.append((c["ac"] + c["iu"]) / sum(c.values()))
    return sum((a + b) / 2 for a, b in itertools.pairwise(values)) / (points - 1)


def batch(n: int = 40, classes: int = 5, draws: int = 0, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (draws, n, classes) if draws else (n, classes)
    logits = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, classes, (n,), generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("draws", [0, 1, 4])
def test_loss_equals_the_loop(variant: str, draws: int) -> None:
    logits, labels = batch(draws=draws)
    for threshold in (0.2, 0.7, 1.2):
        expected = loop_loss(logits, labels, threshold, variant)
        assert avuc_loss(logits, labels, threshold, variant=variant).item() == pytest.approx(expected, rel=1e-9)
        assert avuc_loss(logits.float(), labels, threshold, variant=variant).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cells_equal_the_loop(variant: str) -> None:
    logits, labels = batch()
    cells = avuc_quadrants(logits.softmax(-1), labels, 0.7, variant=variant)
    expected = loop_cells(loop_probs(logits), labels.tolist(), 0.7, variant)
    for name, cell in cells._asdict().items():
        assert cell.item() == pytest.approx(expected[name], rel=1e-9), name


def test_hard_cells_are_the_counts() -> None:
    """Eq. 4 becomes Eq. 2 where p and tanh u are 0 or 1: right and sure, wrong and (nearly) sure of nothing."""
    probs = torch.zeros(3, 100_000, dtype=torch.float64)
    probs[0, 1] = 1.0
    probs[1:] = 1e-5
    cells = avuc_quadrants(probs, torch.tensor([1, 5, 7]), 1.0)
    assert [round(c.item(), 4) for c in cells] == [1.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("draws", [0, 3])
def test_gradient_of_the_loss(variant: str, draws: int) -> None:
    logits, labels = batch(n=8, draws=draws)
    logits.requires_grad_()
    if variant != "stopgrad":  # its gradient is by design not that of its value
        assert gradcheck(lambda z: avuc_loss(z, labels, 0.7, variant=variant), logits)
    (ours,) = torch.autograd.grad(avuc_loss(logits, labels, 0.7, variant=variant), logits)
    (plain,) = torch.autograd.grad(plain_avuc(logits, labels, 0.7, variant), logits)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


def plain_avuc(logits: Tensor, labels: Tensor, threshold: float, variant: str) -> Tensor:
    """Ordinary torch operations and autograd, no fused rows."""
    probs = logits.softmax(-1) if logits.ndim == 2 else logits.softmax(-1).mean(0)
    p, predicted = probs.max(-1)
    u = -(probs * probs.log()).sum(-1)
    right, certain = predicted == labels, u <= threshold
    if variant == "stopgrad":
        p = p.detach()
    if variant == "soft":
        e, k = u / math.log(probs.shape[-1]), threshold / math.log(probs.shape[-1])
        s = torch.sigmoid(10 * torch.log(e * (1 - k) / ((1 - e) * k)))
        sure, unsure = (1 - s) * (1 - u.tanh()), s * u.tanh()
        return torch.log(1 + (unsure[right].sum() + sure[~right].sum()) / (sure[right].sum() + unsure[~right].sum()))
    inverse = p if variant == "monotone" else 1 - p
    forward = 1 - p if variant == "monotone" else p
    ac = (p * (1 - u.tanh()))[right & certain].sum()
    au = (forward * u.tanh())[right & ~certain].sum()
    ic = (inverse * (1 - u.tanh()))[~right & certain].sum()
    iu = ((1 - p) * u.tanh())[~right & ~certain].sum()
    return torch.log(1 + (au + ic) / (ac + iu))


def test_stopgrad_has_the_value_of_paper_and_no_gradient_through_confidence() -> None:
    logits, labels = batch()
    assert avuc_loss(logits, labels, 0.7, variant="stopgrad") == avuc_loss(logits, labels, 0.7, variant="paper")


@pytest.mark.parametrize("points", [2, 21, 64])
@pytest.mark.parametrize("variant", HARD)
@pytest.mark.parametrize("draws", [0, 3])
def test_area_equals_the_loop(points: int, variant: str, draws: int) -> None:
    logits, labels = batch(draws=draws)
    expected = -math.log(loop_area(logits, labels, variant, points))
    assert auavuc_loss(logits, labels, points=points, variant=variant).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("variant", HARD)
def test_exact_area_is_the_limit_of_many_points(variant: str) -> None:
    logits, labels = batch(n=12)
    exact = auavuc_loss(logits, labels, points=None, variant=variant).item()
    assert exact == pytest.approx(-math.log(loop_area(logits, labels, variant, 20_001)), abs=2e-4)
    assert exact == pytest.approx(auavuc_loss(logits, labels, points=200_001, variant=variant).item(), abs=1e-5)


@pytest.mark.parametrize("points", [None, 21])
@pytest.mark.parametrize("variant", ["paper", "monotone"])
def test_gradient_of_the_area(points: int | None, variant: str) -> None:
    logits, labels = batch(n=7, seed=3)
    assert gradcheck(lambda z: auavuc_loss(z, labels, points=points, variant=variant), logits.requires_grad_())


def test_mutual_information_as_uncertainty() -> None:
    logits, labels = batch(draws=4)
    each = logits.softmax(-1)
    mean = each.mean(0)
    mi = torch.special.entr(mean).sum(-1) - torch.special.entr(each).sum(-1).mean(0)
    ac, au, ic, iu = avuc_quadrants(mean, labels, 0.3, uncertainty=mi)
    expected = torch.log1p((au + ic) / (ac + iu))
    printed = avuc_loss(logits, labels, 0.3, variant="paper", uncertainty="mutual_information")
    torch.testing.assert_close(printed, expected)
    assert gradcheck(
        lambda z: avuc_loss(z, labels, 0.3, variant="paper", uncertainty="mutual_information"),
        logits.clone().requires_grad_(),
    )


@pytest.mark.parametrize("draws", [0, 2])
def test_dense_predictions_are_rows(draws: int) -> None:
    logits, labels = batch(n=24, draws=draws)
    lead = (draws,) if draws else ()
    dense = logits.reshape(*lead, 2, 3, 4, 5).movedim(-1, -3)
    for loss in (lambda z, y: avuc_loss(z, y, 0.7), auavuc_loss):
        torch.testing.assert_close(loss(dense, labels.reshape(2, 3, 4)), loss(logits, labels))


def test_ignored_and_unweighted_rows_do_not_count() -> None:
    logits, labels = batch(n=30)
    kept = torch.arange(30) % 3 > 0
    marked = torch.where(kept, labels, -100)
    for loss in (
        lambda z, y, **k: avuc_loss(z, y, 0.7, **k),
        auavuc_loss,
        lambda z, y, **k: auavuc_loss(z, y, points=None, **k),
    ):
        expected = loss(logits[kept], labels[kept])
        torch.testing.assert_close(loss(logits, marked), expected)
        torch.testing.assert_close(loss(logits, labels, weights=kept.double()), expected)
        doubled = loss(torch.cat((logits, logits[:9])), torch.cat((labels, labels[:9])))
        twice = torch.where(torch.arange(30) < 9, 2.0, 1.0)
        torch.testing.assert_close(loss(logits, labels, weights=twice), doubled)


EDGES = {
    "one sample, right": ([[3.0, 0.0, 0.0]], [0]),
    "one sample, wrong": ([[3.0, 0.0, 0.0]], [1]),
    "all right": ([[3.0, 0.0], [0.0, 3.0], [0.2, 0.0]], [0, 1, 0]),
    "all wrong": ([[3.0, 0.0], [0.0, 3.0], [0.2, 0.0]], [1, 0, 1]),
    "only accurate and uncertain": ([[0.2, 0.0], [0.0, 0.1]], [0, 1]),
    "only inaccurate and certain": ([[4.0, 0.0], [0.0, 3.0]], [1, 0]),
    "huge": ([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [-1e4, -1e4, -1e4]], [0, 0, 1]),
    "a class ruled out": ([[1.0, 0.0, -math.inf], [0.3, 0.1, -math.inf]], [0, 1]),
    "uniform": ([[0.0, 0.0, 0.0]] * 3, [0, 1, 2]),
    "one class": ([[0.3], [2.0]], [0, 0]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("draws", [0, 2])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_are_finite(edge: str, variant: str, draws: int, dtype: torch.dtype) -> None:
    rows, answers = EDGES[edge]
    logits = torch.tensor(rows, dtype=dtype)
    logits = (logits.expand(draws, *logits.shape).clone() if draws else logits).requires_grad_()
    labels = torch.tensor(answers)
    losses = [avuc_loss(logits, labels, 0.5, variant=variant)]
    if variant != "soft":
        losses += [auavuc_loss(logits, labels, points=points, variant=variant) for points in (21, None)]
    for loss in losses:
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert loss.item() >= -1e-6
        assert gradient.isfinite().all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("edge", ["only accurate and uncertain", "only inaccurate and certain", "one sample, wrong"])
def test_empty_good_cells_still_have_a_gradient(edge: str, variant: str) -> None:
    """The ratio is bad/0 here: eps in the usual place would give a constant and no gradient at all."""
    rows, answers = EDGES[edge]
    logits = torch.tensor(rows).requires_grad_()
    labels = torch.tensor(answers)
    loss = avuc_loss(logits, labels, 0.5, variant=variant)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.abs().max() > 1e-3
    if variant != "soft":
        assert loss > -math.log(EMPTY_MASS) / 2
        (area_gradient,) = torch.autograd.grad(auavuc_loss(logits, labels, variant=variant), logits)
        assert area_gradient.abs().max() > 1e-4


def test_empty_good_cells_are_emptied_of_bad_ones() -> None:
    """A step against the gradient makes right predictions surer, and (repaired variants) wrong ones less sure."""
    right = torch.tensor([[0.2, 0.0], [0.0, 0.1]], requires_grad=True)
    (gradient,) = torch.autograd.grad(avuc_loss(right, torch.tensor([0, 1]), 0.5, variant="monotone"), right)
    assert gradient[0, 0] < 0
    assert gradient[1, 1] < 0
    wrong = torch.tensor([[4.0, 0.0], [0.0, 3.0]], requires_grad=True)
    for variant in ("stopgrad", "monotone", "soft"):
        (gradient,) = torch.autograd.grad(avuc_loss(wrong, torch.tensor([1, 0]), 0.5, variant=variant), wrong)
        assert gradient[0, 0] > 0, variant
        assert gradient[1, 1] > 0, variant


def test_paper_variant_keeps_its_pathology() -> None:
    """Eq. 4 as printed rewards a wrong prediction for being still surer; this must not be repaired silently."""
    wrong = torch.tensor([[6.0, 0.0], [0.0, 3.0], [3.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(avuc_loss(wrong, torch.tensor([1, 1, 0]), 0.5, variant="paper"), wrong)
    assert gradient[0, 0] < 0


@pytest.mark.parametrize("empty", [torch.zeros(0, 3), torch.zeros(2, 3)])
@pytest.mark.parametrize("points", [21, None])
def test_nothing_to_judge_is_zero(empty: Tensor, points: int | None) -> None:
    labels = torch.full((empty.shape[0],), -100)
    logits = empty.requires_grad_()
    for loss in (avuc_loss(logits, labels, 0.5), auavuc_loss(logits, labels, points=points)):
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.item() == 0
        assert not gradient.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("draws", [0, 2])
def test_nan_is_an_error_that_says_so(bad: float, draws: int) -> None:
    logits, labels = batch(draws=draws)
    logits.view(-1, 5)[3, 2] = bad
    for call in (lambda: avuc_loss(logits, labels, 0.5), lambda: auavuc_loss(logits, labels)):
        with pytest.raises(InputError, match="logits contain NaN"):
            call()
    with pytest.raises(InputError, match="probs contain NaN"):
        avuc_quadrants(torch.full((2, 3), math.nan), torch.tensor([0, 1]), 0.5)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.long), "labels"),
        (torch.zeros(3), torch.zeros(4, dtype=torch.long), "found scores"),
        (torch.zeros(3, 2), torch.zeros(3), "labels must be integers"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), "labels must be 0 … 1"),
        (torch.zeros(3, 2), torch.tensor([0, 1, -1]), "labels must be 0 … 1"),
        (torch.zeros(3, 2, dtype=torch.long), torch.tensor([0, 1, 0]), "floating point"),
        (torch.zeros(0, 3, 2), torch.tensor([0, 1, 0]), "found scores"),
        (torch.zeros(3, 0), torch.tensor([0, 1, 0]), "found scores"),
    ],
)
def test_wrong_input_is_named(logits: Tensor, labels: Tensor, message: str) -> None:
    for call in (lambda: avuc_loss(logits, labels, 0.5), lambda: auavuc_loss(logits, labels)):
        with pytest.raises(InputError, match=message):
            call()


def test_wrong_options_are_named() -> None:
    logits, labels = batch()
    with pytest.raises(InputError, match="variant must be one of paper"):
        avuc_loss(logits, labels, 0.5, variant="hard")
    with pytest.raises(InputError, match="needs a threshold"):
        avuc_loss(logits, labels, None)
    with pytest.raises(InputError, match="needs samples"):
        avuc_loss(logits, labels, 0.5, uncertainty="mutual_information")
    with pytest.raises(InputError, match="one weight per label"):
        avuc_loss(logits, labels, 0.5, weights=torch.ones(3))
    with pytest.raises(InputError, match="no hard threshold"):
        auavuc_loss(logits, labels, variant="soft")
    with pytest.raises(InputError, match="points"):
        auavuc_loss(logits, labels, points=1)
    with pytest.raises(InputError, match="mean over samples"):
        avuc_quadrants(logits.expand(2, -1, -1), labels, 0.5)
    assert avuc_loss(logits, labels, None, variant="soft").isfinite()


def test_a_thousand_classes() -> None:
    logits, labels = batch(n=30, classes=1000, scale=4.0)
    labels[::2] = logits.argmax(-1)[::2]
    single = logits.float().requires_grad_()
    loss = avuc_loss(single, labels, 2.0, variant="paper")
    assert loss.item() == pytest.approx(loop_loss(logits, labels, 2.0, "paper"), rel=1e-4)
    (gradient,) = torch.autograd.grad(loss, single)
    (plain,) = torch.autograd.grad(plain_avuc(logits.requires_grad_(), labels, 2.0, "paper"), logits)
    torch.testing.assert_close(gradient.double(), plain, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("classes", [255, 256, 257, 300, 1000, 1003])
def test_first_of_equal_logits_is_the_prediction(classes: int) -> None:
    """The place must be that of torch.argmax, ties, NaN and all."""
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randint(0, 4, (200, classes), generator=generator).float()
    logits[:, -1] = torch.randint(0, 6, (200,), generator=generator)
    statistics = softmax_statistics(logits)
    assert torch.equal(statistics.predicted, logits.argmax(-1))
    torch.testing.assert_close(statistics.confidence, logits.softmax(-1).amax(-1))
    nan = logits.clone()
    nan[3, classes // 2] = math.nan
    assert softmax_statistics(nan).entropy.isnan().nonzero().tolist() == [[3]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_reach_the_cells(dtype: torch.dtype) -> None:
    logits, labels = batch(draws=2)
    half = logits.to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        inside = avuc_loss(half, labels, 0.7), auavuc_loss(half, labels)
    outside = avuc_loss(half.float(), labels, 0.7), auavuc_loss(half.float(), labels)
    assert inside == outside
    assert inside[0].dtype == torch.float32


@given(
    st.integers(1, 30),
    st.integers(2, 12),
    st.floats(0.01, 30),
    st.floats(0.0, 3.0),
    st.sampled_from(VARIANTS),
    st.integers(),
)
def test_properties(n: int, classes: int, scale: float, threshold: float, variant: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed % 2**31)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=generator)
    loss = avuc_loss(logits, labels, threshold, variant=variant)
    assert loss >= 0
    assert loss.isfinite()
    # the order of rows, a shift of all logits of a row, and a repeated batch change nothing
    order = torch.randperm(n, generator=generator)
    shifted = logits + torch.randn(n, 1, generator=generator, dtype=torch.float64)
    for other, same in ((logits[order], labels[order]), (shifted, labels)):
        torch.testing.assert_close(avuc_loss(other, same, threshold, variant=variant), loss, rtol=1e-6, atol=1e-9)
    if loss < 10:  # with AC + IU > 0 the ratio does not see the number of samples
        both = avuc_loss(logits.repeat(2, 1), labels.repeat(2), threshold, variant=variant)
        torch.testing.assert_close(both, loss, rtol=1e-9, atol=1e-12)
    # identical draws are one draw
    torch.testing.assert_close(avuc_loss(logits.expand(3, -1, -1), labels, threshold, variant=variant), loss)


def test_elbo_is_cross_entropy_and_scaled_kl() -> None:
    logits, labels = batch(draws=3)
    nll = -sum(
        math.log(softmax(row)[y]) for draw in logits.tolist() for row, y in zip(draw, labels.tolist(), strict=True)
    )
    expected = nll / (3 * 40) + 0.1 * 700 / 50_000
    assert elbo_loss(logits, labels, 700.0, num_train=50_000, kl_weight=0.1).item() == pytest.approx(expected, rel=1e-9)
    kl = torch.tensor(700.0, requires_grad=True)
    elbo_loss(logits[0], labels, kl, num_train=50_000).backward()
    assert kl.grad is not None
    assert kl.grad.item() == pytest.approx(1 / 50_000)
    with pytest.raises(InputError, match="num_train"):
        elbo_loss(logits, labels, 0.0, num_train=0)


def test_module_learns_the_midpoint_threshold() -> None:
    avuc = AvUCLoss(beta=2.0, warmup_epochs=2, variant="paper")
    us: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(4):
        logits, labels = batch(seed=seed)
        assert avuc(logits, labels).item() == 0
        for p, y in zip(loop_probs(logits), labels.tolist(), strict=True):
            us[p.index(max(p)) == y].append(loop_entropy(p))
        if seed % 2:
            avuc.epoch_end()
    avuc.eval()(*batch(seed=9))  # evaluation data must not reach the threshold
    expected = (sum(us[True]) / len(us[True]) + sum(us[False]) / len(us[False])) / 2
    assert avuc.threshold.item() == pytest.approx(expected, rel=1e-6)
    logits, labels = batch(seed=5)
    assert avuc(logits, labels).item() == pytest.approx(2 * loop_loss(logits, labels, expected, "paper"), rel=1e-5)
    before = avuc.threshold.clone()
    avuc.train()
    avuc(*batch(seed=6))
    avuc.epoch_end()
    assert avuc.threshold == before


def test_module_resumes_in_the_middle_of_warm_up() -> None:
    whole, half, resumed = (AvUCLoss(warmup_epochs=2) for _ in range(3))
    for module in (whole, half):
        module(*batch(seed=1))
        module.epoch_end()
    resumed.load_state_dict(half.state_dict())
    assert resumed.warming_up
    for module in (whole, resumed):
        module(*batch(seed=2))
        module.epoch_end()
    assert not resumed.warming_up
    assert resumed.threshold == whole.threshold
    again = AvUCLoss(warmup_epochs=2)
    again.load_state_dict(resumed.state_dict())
    assert again(*batch(seed=3)) == whole(*batch(seed=3))


def test_module_at_its_edges() -> None:
    one_group = AvUCLoss(warmup_epochs=1)
    one_group(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    one_group.epoch_end()
    assert one_group.threshold.item() == pytest.approx(loop_entropy(softmax([2.0, 0.0])), rel=1e-6)
    unseen = AvUCLoss(warmup_epochs=1)
    with pytest.raises(InputError, match="no prediction was seen"):
        unseen.epoch_end()
    with pytest.raises(InputError, match="threshold must be given"):
        AvUCLoss(warmup_epochs=0)
    with pytest.raises(InputError, match="NaN"):
        AvUCLoss(warmup_epochs=1)(torch.full((1, 2), math.nan), torch.tensor([0]))
    given_threshold = AvUCLoss(beta=1.0, threshold=0.5)
    assert given_threshold(*batch()) == avuc_loss(*batch(), 0.5)


def test_compiled_loss_equals_eager() -> None:
    logits, labels = batch(n=16)
    compiled = torch.compile(lambda z: avuc_loss(z, labels, 0.7), backend="aot_eager", fullgraph=True)
    a, b = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    eager, traced = avuc_loss(a, labels, 0.7), compiled(b)
    eager.backward()
    traced.backward()
    torch.testing.assert_close(eager, traced)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.gpu
def test_loss_in_a_cuda_graph() -> None:
    logits, labels = (x.cuda() for x in batch(n=16))
    logits.requires_grad_()
    threshold = torch.tensor(0.7, device="cuda")
    expected = (
        avuc_loss(logits, labels, threshold),
        auavuc_loss(logits, labels),
        auavuc_loss(logits, labels, points=None),
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = (
            avuc_loss(logits, labels, threshold),
            auavuc_loss(logits, labels),
            auavuc_loss(logits, labels, points=None),
        )
    graph.replay()
    for a, b in zip(expected, captured, strict=True):
        torch.testing.assert_close(a, b)


def test_names_of_0_1_0_are_aliases_without_a_warning():
    import avuc
    import avuc.losses

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert avuc.Cells is avuc.losses.Cells is avuc.Quadrants
        assert avuc.avuc_cells is avuc.losses.avuc_cells is avuc.avuc_quadrants
