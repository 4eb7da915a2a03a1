"""Augmentation against Pillow: the same numbers fed to a loop over images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from avuc.core.errors import InputError
from avuc.data import Augmentation, Dataset, augment, augment_at
from avuc.data.augmix import CHAINS, COLUMNS, DEPTH, OPERATIONS, augmix
from avuc.shifts import SHIFTS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
BILINEAR = Image.Resampling.BILINEAR


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=BILINEAR)


def one_operation(pixels: np.ndarray, name: str, uniform: float, severity: float) -> np.ndarray:
    """An operation by Pillow, its strength as published, from the number in [0, 1) of its slot."""
    twice = np.float32(2) * np.float32(uniform)
    strength = np.float32(0.1) + np.float32(twice % 1) * np.float32(severity - 0.1)
    sign = 1 if twice < 1 else -1
    height, width, channels = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    changed = {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4 - int(strength * 4 / 10)),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(strength * 256 / 10)),
        "rotate": lambda: image.rotate(sign * int(strength * 30 / 10), resample=BILINEAR),
        "shear_x": lambda: affine(image, 1, sign * float(strength) * 0.3 / 10, 0, 0, 1, 0),
        "shear_y": lambda: affine(image, 1, 0, 0, sign * float(strength) * 0.3 / 10, 1, 0),
        "translate_x": lambda: affine(image, 1, 0, sign * int(strength * (width / 3) / 10), 0, 1, 0),
        "translate_y": lambda: affine(image, 1, 0, 0, 0, 1, sign * int(strength * (height / 3) / 10)),
    }[name]()
    return np.asarray(changed).reshape(pixels.shape)


def one_image(pixels: np.ndarray, drawn: np.ndarray, severity: float = 3.0) -> np.ndarray:
    """AugMix of one image, as its paper's listing has it, before rounding."""
    m, numbers = float(drawn[0]), iter(drawn[1:])
    exponentials = np.array([-math.log1p(-float(next(numbers))) for _ in range(CHAINS)])
    lengths = [1 + int(DEPTH * next(numbers)) for _ in range(CHAINS)]
    names = [[OPERATIONS[int(9 * next(numbers))] for _ in range(DEPTH)] for _ in range(CHAINS)]
    strengths = [[next(numbers) for _ in range(DEPTH)] for _ in range(CHAINS)]
    mixed = np.zeros(pixels.shape)
    for weight, length, chain, numbers_of in zip(
        exponentials / exponentials.sum(), lengths, names, strengths, strict=True
    ):
        changed = pixels
        for name, uniform in list(zip(chain, numbers_of, strict=True))[:length]:
            changed = one_operation(changed, name, uniform, severity)
        mixed += weight * changed
    return (1 - m) * pixels + m * mixed


def only(name: str, strengths: torch.Tensor) -> torch.Tensor:
    """Numbers that make the result one operation: all of the mix, all weight on the first chain, of length one."""
    drawn = torch.zeros(len(strengths), COLUMNS)
    drawn[:, 0] = 1  # m
    drawn[:, 1] = 0.5  # the first chain's weight; the others have the exponential 0
    drawn[:, 7] = (OPERATIONS.index(name) + 0.5) / 9
    drawn[:, 16] = strengths
    return drawn


def hard_images(side: int = 32) -> torch.Tensor:
    """Flat, two-valued, faint, dark and single-pixel images: where tables have their special cases."""
    g = torch.Generator().manual_seed(0)
    shape = (side, side, 3)
    one = torch.zeros(shape, dtype=torch.uint8)
    one[3, 4] = 200
    return torch.stack(
        [
            torch.full(shape, 77, dtype=torch.uint8),
            torch.randint(0, 2, shape, generator=g).mul(255).to(torch.uint8),
            torch.randint(100, 104, shape, generator=g, dtype=torch.uint8),
            torch.randint(0, 20, shape, generator=g, dtype=torch.uint8),
            torch.randint(0, 256, shape, generator=g, dtype=torch.uint8),
            one,
        ]
    )


@pytest.fixture(scope="module")
def images(crops: Callable[..., np.ndarray]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(crops(60)), hard_images()])


# operations


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("severity", [3.0, 10.0])
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in GEOMETRIC])
def test_tables_equal_pillow(images: torch.Tensor, name: str, severity: float, device: str) -> None:
    strengths = torch.rand(len(images), generator=torch.Generator().manual_seed(1))
    got = augmix(images.to(device), only(name, strengths).to(device), severity).cpu()
    for image, uniform, result in zip(images, strengths, got, strict=True):
        np.testing.assert_array_equal(result.numpy(), one_operation(image.numpy(), name, float(uniform), severity))


def test_every_stretch_equals_pillow() -> None:
    """Every ninth pair of lowest and highest value; Pillow's floating-point steps decide the last bit."""
    low, high = torch.triu_indices(256, 256)[:, ::9]
    ramp = torch.linspace(0, 1, 16)[None] * (high - low)[:, None] + low[:, None]
    images = ramp.round().to(torch.uint8).view(-1, 4, 4, 1)
    got = augmix(images, only("autocontrast", torch.zeros(len(images))))
    pixels = images.numpy()
    for k in range(len(images)):
        np.testing.assert_array_equal(got[k].numpy(), one_operation(pixels[k], "autocontrast", 0, 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("severity", [3.0, 10.0])
@pytest.mark.parametrize("name", GEOMETRIC)
def test_maps_equal_pillow(images: torch.Tensor, name: str, severity: float, device: str) -> None:
    """Whole-pixel moves to the byte; elsewhere float32 against Pillow's float64, cut to bytes."""
    images = torch.cat([images, images.flip(0)])
    strengths = torch.rand(len(images), generator=torch.Generator().manual_seed(2))
    got = augmix(images.to(device), only(name, strengths).to(device), severity).cpu()
    want = [one_operation(i.numpy(), name, float(u), severity) for i, u in zip(images, strengths, strict=True)]
    apart = np.abs(got.numpy().astype(int) - np.stack(want))
    assert (apart > 0).mean() < (2e-4 if name in ("rotate", "shear_x", "shear_y") else 1e-12)
    assert (apart > 1).mean() < 1e-5


# the whole


def close(got: torch.Tensor, want: np.ndarray) -> None:
    """Rounded, so half a level apart, and another level where an operation's last bit fell the other way."""
    apart = np.abs(got.numpy() - want)
    assert apart.mean() < 0.27  # rounding alone gives 0.25
    assert (apart > 0.51).mean() < 2e-4
    assert (apart > 1.51).mean() < 3e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 3), (28, 28, 1), (20, 33, 3), (41, 17, 1)], ids=str)
def test_augmix_equals_a_loop(
    crops: Callable[..., np.ndarray], height: int, width: int, channels: int, device: str
) -> None:
    images = torch.from_numpy(crops(40, 41))[:, :height, :width, :channels].contiguous()
    drawn = torch.rand(40, COLUMNS, generator=torch.Generator().manual_seed(3))
    got = augmix(images.to(device), drawn.to(device)).cpu()
    assert got.dtype == torch.uint8
    assert got.shape == images.shape
    close(got, np.stack([one_image(i.numpy(), d) for i, d in zip(images, drawn.numpy(), strict=True)]))


def test_crop_and_flip_come_first(images: torch.Tensor) -> None:
    policy = Augmentation("augmix", pad=3)
    indices = torch.randint(0, len(images), (50,), generator=torch.Generator().manual_seed(0))
    drawn = policy.draw(50, torch.Generator().manual_seed(4), "cpu")
    choice = (drawn[:, 0] * 98).long()
    cropped = augment_at(images, indices, choice // 14, choice // 2 % 7, choice % 2, pad=3)
    assert torch.equal(policy.apply(images, indices, drawn), augmix(cropped, drawn[:, 1:]))
    without = Augmentation("augmix", pad=0, flip=False)
    assert torch.equal(without.apply(images, indices, drawn), augmix(images[indices], drawn[:, 1:]))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_do_not_depend_on_each_other(images: torch.Tensor, rows: int) -> None:
    policy = Augmentation("augmix")
    indices = torch.arange(10)
    drawn = policy.draw(10, torch.Generator().manual_seed(5), "cpu")
    whole = policy.apply(images, indices, drawn)
    parts = [policy.apply(images, indices[part], drawn[part]) for part in (slice(0, rows), slice(rows, 10))]
    assert torch.equal(whole, torch.cat(parts))


def test_numbers_next_to_one(images: torch.Tensor) -> None:
    """The largest float below 1 chooses the last of everything and nothing beyond it; zeros give no NaN."""
    policy = Augmentation("augmix")
    highest = torch.full((1, 1 + COLUMNS), 1 - 2**-24)
    index = torch.tensor([3])
    cropped = augment_at(images, index, torch.tensor([8]), torch.tensor([8]), torch.tensor([1]))
    got = policy.apply(images, index, highest)
    close(got, one_image(cropped[0].numpy(), highest[0, 1:].numpy())[None])
    lowest = torch.zeros(1, 1 + COLUMNS)
    lowest[:, 1] = 1
    stretched = policy.apply(images, index, lowest)
    corner = augment_at(images, index, *(torch.zeros(1, dtype=torch.int64),) * 3)
    np.testing.assert_array_equal(stretched[0].numpy(), one_operation(corner[0].numpy(), "autocontrast", 0, 3))


def test_operations_are_none_of_the_shifts() -> None:
    assert len(OPERATIONS) == 9
    assert not {*OPERATIONS} & {*SHIFTS, "contrast", "color", "brightness", "sharpness"}


# the random part


def test_crops_are_those_of_augment(images: torch.Tensor) -> None:
    """The integers of one `randint` on the generator: what earlier runs with the same seed drew."""
    indices = torch.arange(20)
    for pad, flip in ((4, True), (2, False), (0, True)):
        policy, g = Augmentation(pad=pad, flip=flip), torch.Generator().manual_seed(6)
        drawn = policy.draw(20, g, "cpu")
        again = torch.Generator().manual_seed(6)
        want = torch.randint((2 * pad + 1) ** 2 * (1 + flip), (20,), generator=again)
        assert torch.equal(drawn[:, 0], want)
        assert torch.equal(g.get_state(), again.get_state())
        cropped = augment(images, indices, g.manual_seed(6), pad=pad, flip=flip)
        assert torch.equal(policy.apply(images, indices, drawn), cropped)


def test_without_pad_and_flip_nothing_is_drawn(images: torch.Tensor) -> None:
    policy, g = Augmentation(pad=0, flip=False), torch.Generator().manual_seed(0)
    before = g.get_state()
    drawn = policy.draw(3, g, "cpu")
    assert drawn.shape == (3, 0)
    assert torch.equal(g.get_state(), before)
    indices = torch.tensor([4, 4, 0])
    assert torch.equal(policy.apply(images, indices, drawn), images[indices])


def test_the_generator_decides(images: torch.Tensor) -> None:
    policy, g, indices = Augmentation("augmix"), torch.Generator(), torch.arange(9)
    first, second = (policy.draw(9, g.manual_seed(seed), "cpu") for seed in (7, 8))
    assert torch.equal(first, policy.draw(9, g.manual_seed(7), "cpu"))
    results = [policy.apply(images, indices, drawn) for drawn in (first, second, first)]
    assert torch.equal(results[0], results[2])
    assert not torch.equal(results[0], results[1])


def test_how_often_things_happen() -> None:
    """What each slot did to an image that tells, over 5,000 draws: operations, lengths and signs are uniform."""
    n = 5_000
    row, column = torch.meshgrid(torch.arange(10), torch.arange(10), indexing="ij")
    image = torch.stack([150 + 9 * row, 100 + row + column, 60 + 5 * column], -1).to(torch.uint8)[None]
    seen = Counter()
    drawn = torch.rand(n, COLUMNS, generator=torch.Generator().manual_seed(9))
    drawn[:, 0], drawn[:, 1], drawn[:, 2:4] = 1, 0.5, 0  # the first chain alone
    drawn[:, 4] = 0  # of length one
    answers = {
        (name, sign): augmix(image, only(name, torch.tensor([sign])))[0].numpy().tobytes()
        for name in OPERATIONS
        for sign in (0.4999, 0.9999)
    }
    assert len(set(answers.values())) > 9
    drawn[:, 16] = torch.where(drawn[:, 16] < 0.5, 0.4999, 0.9999)  # two strengths, so that the results are known
    for result in augmix(image.expand(n, -1, -1, -1), drawn):
        seen[result.numpy().tobytes()] += 1
    expected = Counter()
    for answer in answers.values():
        expected[answer] += n / 18
    assert seen.keys() == expected.keys()
    chi2 = sum((seen[key] - expected[key]) ** 2 / expected[key] for key in expected)
    degrees = len(expected) - 1
    assert chi2 < degrees + 4 * math.sqrt(2 * degrees)


def test_shares_are_those_of_dirichlet_and_beta() -> None:
    """White pixels that the first chain turns black: what is lost is m·w, whose moments are known."""
    n = 6_000
    drawn = torch.rand(n, COLUMNS, generator=torch.Generator().manual_seed(10))
    drawn[:, 4:7] = 0  # chains of length one
    drawn[:, 7:16] = (OPERATIONS.index("equalize") + 0.5) / 9  # which leaves a flat image as it is
    drawn[:, 7] = (OPERATIONS.index("solarize") + 0.5) / 9
    white = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8).expand(n, -1, -1, -1)
    drawn[:, 16:] = 0.3
    share = 1 - augmix(white, drawn).flatten().double() / 255  # m·w of the first chain
    # E[m w] = 1/2·1/3, E[(m w)²] = 1/3·1/6
    assert abs(float(share.mean()) - 1 / 6) < 4 * math.sqrt((1 / 18 - 1 / 36) / n) + 1e-4
    assert abs(float((share**2).mean()) - 1 / 18) < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "mixup"}, "policy must be one of crop, augmix; found 'mixup'"),
        ({"pad": -1}, "pad must not be negative"),
        ({"policy": "augmix", "severity": 11}, "severity must be in"),
    ],
)
def test_wrong_words_are_named(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Augmentation(**options)


# fast paths


def test_it_can_be_compiled(images: torch.Tensor) -> None:
    """One graph without breaks, through every transformation short of code generation."""
    policy, indices = Augmentation("augmix"), torch.arange(8)
    drawn = policy.draw(8, torch.Generator().manual_seed(11), "cpu")
    step = torch.compile(policy.apply, backend="aot_eager", fullgraph=True, dynamic=False)
    assert torch.equal(step(images, indices, drawn), policy.apply(images, indices, drawn))


def test_the_operator_can_be_compiled(images: torch.Tensor) -> None:
    """What a GPU's step calls: one operator that a compiler leaves whole; on a CPU it takes the plain way."""
    policy, indices = Augmentation("augmix"), torch.arange(8)
    drawn = policy.draw(8, torch.Generator().manual_seed(11), "cpu")

    def step(images: torch.Tensor, indices: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return torch.ops.avuc.augmix(images, indices, drawn, policy.pad, policy.flip, policy.severity) // 2

    got = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=False)(images, indices, drawn)
    assert torch.equal(got, policy.apply(images, indices, drawn) // 2)
    torch.library.opcheck(torch.ops.avuc.augmix.default, (images, indices, drawn, 4, True, 3.0))


@pytest.mark.gpu
def test_cuda_equals_cpu_and_compiled(images: torch.Tensor) -> None:
    """The same numbers give the same pictures; sines, logarithms and fused sums may move a last bit."""
    policy, indices = Augmentation("augmix"), torch.arange(len(images)).repeat(4)
    drawn = policy.draw(len(indices), torch.Generator().manual_seed(12), "cpu")
    want = policy.apply(images, indices, drawn).int()
    on_cuda = [x.cuda() for x in (images, indices, drawn)]
    compiled = torch.compile(policy.apply, fullgraph=True, dynamic=False)
    for apply in (policy.apply, compiled):
        first, second = apply(*on_cuda), apply(*on_cuda)
        assert torch.equal(first, second)
        apart = (first.cpu().int() - want).abs()
        assert (apart > 0).double().mean() < 1e-3
        assert (apart > 1).double().mean() < 1e-4


@pytest.mark.gpu
def test_a_graph_draws_and_applies(crops: Callable[..., np.ndarray]) -> None:
    """Replays read the static indices and advance the registered generator exactly as eager calls do."""
    images = torch.from_numpy(crops(48)).cuda()
    policy, g = Augmentation("augmix"), torch.Generator("cuda").manual_seed(1)
    static = torch.zeros(16, dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        policy.apply(images, static, policy.draw(16, g, "cuda"))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        out = policy.apply(images, static, policy.draw(16, g, "cuda"))
    g.manual_seed(5)
    replayed = []
    for start in (0, 16, 32):
        static.copy_(torch.arange(start, start + 16, device="cuda"))
        graph.replay()
        replayed.append(out.clone())
    g.manual_seed(5)
    for start, got in zip((0, 16, 32), replayed, strict=True):
        rows = torch.arange(start, start + 16, device="cuda")
        assert torch.equal(got, policy.apply(images, rows, policy.draw(16, g, "cuda")))


def test_real_cifar(real_cifar: object) -> None:
    """On the images it is meant for: equal to the loop, and most of a picture survives."""
    from avuc.data import load_dataset

    data: Dataset = load_dataset("cifar10", real_cifar, split="test", verify=False)
    images = data.images[:60]
    drawn = torch.rand(60, COLUMNS, generator=torch.Generator().manual_seed(13))
    got = augmix(images, drawn)
    close(got, np.stack([one_image(i.numpy(), d) for i, d in zip(images, drawn.numpy(), strict=True)]))
    flat = torch.stack([got.flatten(1).double(), images.flatten(1).double()])
    correlation = torch.stack([torch.corrcoef(pair)[0, 1] for pair in flat.unbind(1)])
    assert float(correlation.median()) > 0.8
