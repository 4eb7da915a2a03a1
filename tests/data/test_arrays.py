"""The device-resident data set and its augmentation, against a loop over images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avuc.core.errors import InputError
from avuc.data.arrays import UNLABELLED, Dataset, as_input, channel_stats, epoch_batches
from avuc.data.augmentation import augment, augment_at

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def photographs(n: int, side: int = 32) -> torch.Tensor:
    """Crops of the two photographs in scikit-learn: real pixels, uint8 NHWC."""
    from sklearn.datasets import load_sample_image

    picture = load_sample_image("china.jpg")
    rows = np.random.default_rng(0).integers(0, [picture.shape[0] - side, picture.shape[1] - side], size=(n, 2))
    return torch.from_numpy(np.stack([picture[y : y + side, x : x + side] for y, x in rows]))


def one_image(image: np.ndarray, top: int, left: int, flipped: bool, pad: int) -> np.ndarray:
    height, width, _ = image.shape
    padded = np.pad(image, ((pad, pad), (pad, pad), (0, 0)))
    crop = padded[top : top + height, left : left + width]
    return crop[:, ::-1] if flipped else crop


def dataset(n: int = 6, **changes: object) -> Dataset:
    fields: dict = {
        "images": photographs(n, 8),
        "labels": torch.arange(n) % 3,
        "num_classes": 3,
        "name": "toy",
        "class_names": ("a", "b", "c"),
    }
    return Dataset(**(fields | changes))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_every_crop_and_flip_equals_the_loop(device: str, pad: int) -> None:
    images = photographs(3)
    choices = [(t, x, f) for t in range(2 * pad + 1) for x in range(2 * pad + 1) for f in (False, True)]
    top, left, flipped = (torch.tensor(column) for column in zip(*choices, strict=True))
    indices = torch.arange(len(choices)) % 3
    got = augment_at(*(x.to(device) for x in (images, indices, top, left, flipped)), pad=pad).cpu()
    for k, (t, x, f) in enumerate(choices):
        np.testing.assert_array_equal(got[k].numpy(), one_image(images[k % 3].numpy(), t, x, f, pad))
    assert got.dtype == torch.uint8


@given(
    n=st.integers(1, 5),
    batch=st.integers(0, 7),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3, 4]),
    pad=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_any_shape_equals_the_loop(
    n: int, batch: int, height: int, width: int, channels: int, pad: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, height, width, channels), generator=g, dtype=torch.uint8)
    indices = torch.randint(0, n, (batch,), generator=g)
    top, left = torch.randint(0, 2 * pad + 1, (2, batch), generator=g)
    flipped = torch.randint(0, 2, (batch,), generator=g).bool()
    got = augment_at(images, indices, top, left, flipped, pad=pad)
    assert got.shape == (batch, height, width, channels)
    for k in range(batch):
        want = one_image(images[indices[k]].numpy(), int(top[k]), int(left[k]), bool(flipped[k]), pad)
        np.testing.assert_array_equal(got[k].numpy(), want)


def test_images_that_are_not_contiguous() -> None:
    images = photographs(4).permute(0, 2, 1, 3)
    still = torch.full((4,), 4)
    got = augment_at(images, torch.arange(4), still, still, torch.zeros(4, dtype=torch.bool))
    assert torch.equal(got, images)


def test_crops_and_flips_are_uniform_and_independent() -> None:
    """The pixel values are their own coordinates, so each output says which of the 162 choices made it."""
    side, n = 16, 40_000
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    image = torch.stack([row + 1, column + 1], -1).to(torch.uint8)[None]
    out = augment(image, torch.zeros(n, dtype=torch.int64), torch.Generator().manual_seed(3)).long()
    centre, beside = out[:, 8, 8], out[:, 8, 9]
    flipped = (beside[:, 1] < centre[:, 1]).long()
    top = centre[:, 0] - 1 - 8 + 4
    left = torch.where(flipped == 1, centre[:, 1] - 1 - 7 + 4, centre[:, 1] - 1 - 8 + 4)
    choice = (top * 9 + left) * 2 + flipped
    counts = torch.bincount(choice, minlength=162).double()
    assert len(counts) == 162
    expected = n / 162
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 161 + 4 * math.sqrt(2 * 161)  # four standard deviations of a χ² with 161 degrees


@pytest.mark.parametrize("device", DEVICES)
def test_the_generator_decides(device: str) -> None:
    images, indices = photographs(5).to(device), torch.arange(5, device=device)
    g = torch.Generator(device)
    first = augment(images, indices, g.manual_seed(7))
    second = augment(images, indices, g)
    assert torch.equal(first, augment(images, indices, g.manual_seed(7)))
    assert not torch.equal(first, second)


def test_without_pad_and_flip_nothing_changes() -> None:
    images = photographs(4)
    out = augment(images, torch.tensor([2, 0]), torch.Generator().manual_seed(0), pad=0, flip=False)
    assert torch.equal(out, images[[2, 0]])


@pytest.mark.gpu
@pytest.mark.parametrize("side", [32, 17])
def test_the_step_is_captured_in_a_graph(side: int) -> None:
    """Replays read the static index buffer and advance the registered generator exactly as eager calls do."""
    images = photographs(50, side).cuda()
    static = torch.zeros(16, dtype=torch.int64, device="cuda")
    g = torch.Generator("cuda").manual_seed(1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if side == 32:  # at 17 nothing is warm: the capture itself is the first call, and must leave nothing behind
            augment(images, static, g)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        out = as_input(augment(images, static, g))
    g.manual_seed(5)
    replayed = []
    for start in (0, 16, 32):
        static.copy_(torch.arange(start, start + 16, device="cuda"))
        graph.replay()
        replayed.append(out.clone())
    g.manual_seed(5)
    for start, got in zip((0, 16, 32), replayed, strict=True):
        assert torch.equal(got, as_input(augment(images, torch.arange(start, start + 16, device="cuda"), g)))


def test_it_can_be_compiled() -> None:
    """One graph without breaks (the eager back end: what is checked is the tracing), same pixels."""
    images, indices = photographs(9), torch.tensor([3, 3, 8, 0])
    top, left, flipped = (
        torch.tensor([0, 8, 4, 2]),
        torch.tensor([8, 1, 4, 7]),
        torch.tensor([True, False, True, False]),
    )
    step = torch.compile(augment_at, backend="eager", fullgraph=True)
    assert torch.equal(step(images, indices, top, left, flipped), augment_at(images, indices, top, left, flipped))


@given(n=st.integers(0, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 2**32), drop_last=st.booleans())
def test_an_epoch_sees_every_image_once(n: int, batch_size: int, seed: int, drop_last: bool) -> None:
    batches = list(epoch_batches(n, batch_size, torch.Generator().manual_seed(seed), drop_last=drop_last))
    assert [len(b) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    seen = [int(i) for b in batches for i in b]
    assert len(set(seen)) == len(seen)
    assert len(seen) == (n - n % batch_size if drop_last else n)
    assert set(seen) <= set(range(n))


def test_epochs_differ_and_repeat() -> None:
    g = torch.Generator().manual_seed(0)
    first, second = (torch.cat(list(epoch_batches(100, 32, g))) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, torch.cat(list(epoch_batches(100, 32, g.manual_seed(0)))))


def test_batch_size_zero() -> None:
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        next(epoch_batches(3, 0, torch.Generator()))


def test_as_input_and_channel_stats() -> None:
    images = photographs(20)
    mean, std = channel_stats(images)
    scaled = images.double().numpy() / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(std, scaled.std((0, 1, 2)), rtol=1e-6)
    x = as_input(images, mean, std)
    assert x.shape == (20, 3, 32, 32)
    assert x.dtype == torch.float32
    assert x.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(x.double().mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.double().std((0, 2, 3)), 1, atol=1e-4)
    assert as_input(images, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert as_input(images[:0]).shape == (0, 3, 32, 32)


def test_a_constant_channel_normalises_to_zero() -> None:
    images = torch.full((2, 3, 3, 1), 77, dtype=torch.uint8)
    assert as_input(images, *channel_stats(images)).abs().max() < 1e-6


def test_dataset_to_subset_repr() -> None:
    data = dataset()
    assert len(data) == 6
    assert repr(data) == "Dataset('toy', 6 images 8×8×3, 3 classes, cpu)"
    part = data.subset([4, 0])
    assert torch.equal(part.images, data.images[[4, 0]])
    assert part.labels.tolist() == [1, 0]
    assert (part.name, part.class_names, part.num_classes) == ("toy", ("a", "b", "c"), 3)
    assert data.subset(data.labels == 2).labels.tolist() == [2, 2]
    assert len(data.subset([])) == 0
    assert data.to("cpu").device.type == "cpu"
    with pytest.raises(AttributeError):
        data.name = "other"  # type: ignore[misc]


@pytest.mark.gpu
def test_dataset_on_cuda() -> None:
    data = dataset().to("cuda")
    assert data.device.type == data.labels.device.type == "cuda"
    assert data.subset([1]).images.device.type == "cuda"
    with pytest.raises(InputError, match=r"use \.to\(device\)"):
        Dataset(data.images, data.labels.cpu(), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(6, 8, 8, 3)}, "images must be uint8 .* found float32"),
        ({"images": torch.zeros(6, 8, 8, dtype=torch.uint8)}, r"found uint8 \(6, 8, 8\)"),
        ({"labels": torch.zeros(5, dtype=torch.int64)}, r"labels must be int64 \(6,\).*found int64 \(5,\)"),
        ({"labels": torch.zeros(6)}, "found float32"),
        ({"labels": torch.tensor([0, 0, 0, 0, 0, 3])}, r"toy: label 3 is outside 0…2"),
        ({"labels": torch.tensor([0, 0, 0, 0, 0, -2])}, "label -2 is outside"),
        ({"class_names": ("a",)}, "1 class names for 3 classes"),
        ({"num_classes": ["a", "b", "c"]}, "num_classes must be a whole number, found list; .* class_names="),
    ],
)
def test_a_wrong_dataset_says_what_is_wrong(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        dataset(**changes)
    assert "\n" not in str(caught.value)


def test_images_are_stored_in_one_piece() -> None:
    data = dataset(images=photographs(6, 8).permute(0, 2, 1, 3))
    assert data.images.is_contiguous()
    assert torch.equal(data.images, photographs(6, 8).transpose(1, 2))


def test_unlabelled_images_are_allowed() -> None:
    assert int(dataset(labels=torch.full((6,), UNLABELLED)).labels.max()) == -1


@pytest.mark.parametrize("indices", [[6], [-1], torch.ones(5, dtype=torch.bool)])
def test_a_subset_outside_the_data(indices: object) -> None:
    with pytest.raises(InputError, match=r"outside 0…5|a mask needs 6 entries"):
        dataset().subset(indices)  # type: ignore[arg-type]
