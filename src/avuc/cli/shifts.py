"""`avuc shifts gallery`: one picture of every shift at every severity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from avuc.cli.command import Command, Namespace, Parser
from avuc.cli.console import Console
from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXAMPLES = """\
examples:
  avuc shifts gallery photograph.jpg --out sheet.png
  avuc shifts gallery mnist5k --index 7 --out digits.png
  avuc shifts gallery cifar10 --root DATA --out sheet.png --frost FROST_PHOTOGRAPHS"""
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}
# ImageNet-C's constants are made for images of this size, CIFAR-10-C's for 32 pixels
_IMAGENET_SIZE = 224
# up to this size, --profile auto uses CIFAR-10-C's constants
_LARGEST_CIFAR = 64


def arguments(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    gallery = actions.add_parser(
        "gallery",
        help="write a picture of every shift at severities 1-5",
        description="Write a PNG with one row per shift: the clean image, then severities 1 to 5.",
    )
    gallery.set_defaults(own_parser=gallery)
    gallery.add_argument("source", metavar="IMAGE|DATASET", help="a picture file, or a data set by name or path")
    gallery.add_argument("--out", metavar="FILE.png", required=True, help="the PNG file to write")
    gallery.add_argument("--root", metavar="DIR", help="folder of the data set (default: the cache)")
    gallery.add_argument("--index", type=int, default=0, metavar="N", help="which image of the data set (default 0)")
    gallery.add_argument(
        "--profile",
        choices=("auto", "cifar", "imagenet"),
        default="auto",
        help=f"constants of CIFAR-10-C or ImageNet-C; auto (default): CIFAR-10-C up to {_LARGEST_CIFAR} pixels",
    )
    gallery.add_argument("--seed", type=int, default=0, help="seed of the random shifts (default 0)")
    gallery.add_argument("--frost", metavar="DIR", help="a folder of frost photographs (or set AVUC_FROST_DIR)")


def run(args: Namespace) -> int:
    out = Path(args.out)
    if out.suffix.lower() != ".png":
        raise InputError(f"{out}: --out must end in .png; rename it")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(
            f"{out}: --out is not a file name in a folder that exists; create the folder or choose another name"
        )
    if out.exists() and out.resolve() == Path(args.source).resolve():
        raise InputError(f"{out}: --out would overwrite the picture; choose another name")
    from avuc import shifts
    from avuc.core.progress import Progress
    from avuc.shifts.gallery import contact_sheet

    if args.frost:
        shifts.use_frost_folder(args.frost)
    image, title = _image(args)
    profile = args.profile
    if profile == "auto":
        profile = "cifar" if min(image.shape[:2]) <= _LARGEST_CIFAR else "imagenet"
    with Progress("shifts", total=5 * len(shifts.SHIFTS)) as bar:

        def counted(images: NDArray[np.uint8], name: str, severity: int) -> NDArray[np.uint8]:
            bar.advance(note=name)
            return shifts.corrupt(images, name, severity, seed=args.seed, profile=profile)

        sheet = contact_sheet(image, tuple(shifts.SHIFTS), counted)
    with atomic_path(out) as path:
        sheet.save(path, format="PNG")
    console = Console()
    console.line(f"{title}, {image.shape[0]}×{image.shape[1]}×{image.shape[2]}; severities of the {profile} profile")
    console.line(f"frost pictures: {shifts.frost_source()}")
    console.line(f"wrote {out}: {len(shifts.SHIFTS)} shifts × 5 severities")
    return 0


def _image(args: Namespace) -> tuple[NDArray[np.uint8], str]:
    """Return the image (H, W, C) and a title."""
    path = Path(args.source)
    if path.is_file() and path.suffix.lower() in _PICTURES:
        return _picture(path), path.name
    if path.suffix.lower() in _PICTURES:
        raise InputError(f"{path}: no such picture; check the name")
    from avuc.data import load_dataset

    dataset = load_dataset(args.source, args.root)
    if not 0 <= args.index < len(dataset):
        raise InputError(
            f"--index: expected 0 to {len(dataset) - 1} for {dataset.name}, found {args.index}; choose one of these"
        )
    return dataset.images[args.index].cpu().numpy(), f"image {args.index} of {dataset.name}"


def _picture(path: Path) -> NDArray[np.uint8]:
    """Read a picture. If it is larger than 224 pixels, scale its shorter side to 224 and take the central square."""
    import numpy as np

    from avuc.core.image_files import open_picture

    pil = require("PIL.Image", "study", "reading pictures")
    picture = open_picture(path, None)
    if min(picture.size) > _IMAGENET_SIZE:
        scale = _IMAGENET_SIZE / min(picture.size)
        picture = picture.resize([round(side * scale) for side in picture.size], pil.Resampling.LANCZOS)
        left, top = ((side - _IMAGENET_SIZE) // 2 for side in picture.size)
        picture = picture.crop((left, top, left + _IMAGENET_SIZE, top + _IMAGENET_SIZE))
    pixels: NDArray[np.uint8] = np.array(picture)
    return pixels if pixels.ndim == 3 else pixels[..., None]


COMMAND = Command(
    summary="show the shifts: a picture of every corruption and severity",
    text="The shifts on which a study tests a classifier.",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
