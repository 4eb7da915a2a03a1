"""`avuc shifts gallery`: every shift at every severity on one sheet."""

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

__all__ = ["COMMAND"]

EXAMPLES = """\
examples:
  avuc shifts gallery photograph.jpg --out sheet.png
  avuc shifts gallery mnist5k --index 7 --out digits.png
  avuc shifts gallery cifar10 --root DATA --out sheet.png --frost FROST_PHOTOGRAPHS"""
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm"}
# ImageNet-C's constants are for crops of this size; CIFAR-10-C's for 32 pixels
_CROP, _SMALL = 224, 64


def arguments(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    gallery = actions.add_parser(
        "gallery",
        help="one contact sheet of every shift at severities 1-5",
        description="One contact sheet, as PNG: a row for each shift, the clean image and severities 1-5.",
    )
    gallery.add_argument("source", metavar="IMAGE|DATASET", help="a picture, or a data set by name or path")
    gallery.add_argument("--out", metavar="FILE.png", required=True, help="the sheet to write")
    gallery.add_argument("--root", metavar="DIR", help="where the data set is")
    gallery.add_argument("--index", type=int, default=0, metavar="N", help="which image of the data set (default 0)")
    gallery.add_argument(
        "--profile",
        choices=("auto", "cifar", "imagenet"),
        default="auto",
        help=f"whose severities; auto takes CIFAR's up to {_SMALL} pixels and ImageNet's above",
    )
    gallery.add_argument("--seed", type=int, default=0, help="of the random shifts (default 0)")
    gallery.add_argument("--frost", metavar="DIR", help="a folder of frost photographs (or set AVUC_FROST_DIR)")


def run(args: Namespace) -> int:
    out = Path(args.out)
    if out.suffix.lower() != ".png":
        raise InputError(f"{out}: --out must end in .png")
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"{out}: --out is not a file name in a folder that exists")
    if out.exists() and out.resolve() == Path(args.source).resolve():
        raise InputError(f"{out}: --out would overwrite the picture; choose another name")
    from avuc import shifts
    from avuc.core.progress import Progress
    from avuc.shifts.gallery import contact_sheet

    if args.frost:
        shifts.use_frost_folder(args.frost)
    image, what = _image(args)
    profile = args.profile
    if profile == "auto":
        profile = "cifar" if min(image.shape[:2]) <= _SMALL else "imagenet"
    with Progress("shifts", total=5 * len(shifts.SHIFTS)) as bar:

        def counted(images: NDArray[np.uint8], name: str, severity: int) -> NDArray[np.uint8]:
            bar.advance(note=name)
            return shifts.corrupt(images, name, severity, seed=args.seed, profile=profile)

        sheet = contact_sheet(image, tuple(shifts.SHIFTS), counted)
    with atomic_path(out) as path:
        sheet.save(path, format="PNG")
    console = Console()
    console.line(f"{what}, {image.shape[0]}×{image.shape[1]}×{image.shape[2]}; severities of the {profile} profile")
    console.line(f"frost pictures: {shifts.frost_source()}")
    console.line(f"wrote {out}: {len(shifts.SHIFTS)} shifts × 5 severities")
    return 0


def _image(args: Namespace) -> tuple[NDArray[np.uint8], str]:
    """The image (H, W, C) and what it is."""
    path = Path(args.source)
    if path.is_file() and path.suffix.lower() in _PICTURES:
        return _picture(path), path.name
    if path.suffix.lower() in _PICTURES:
        raise InputError(f"{path}: no such picture")
    from avuc.data import load_dataset

    dataset = load_dataset(args.source, args.root)
    if not 0 <= args.index < len(dataset):
        raise InputError(f"--index: expected 0 to {len(dataset) - 1} for {dataset.name}, found {args.index}")
    return dataset.images[args.index].cpu().numpy(), f"image {args.index} of {dataset.name}"


def _picture(path: Path) -> NDArray[np.uint8]:
    """A small picture as it is; a larger one's middle, scaled to the size that ImageNet's severities are made for."""
    import numpy as np

    from avuc.core.image_files import open_picture

    pil = require("PIL.Image", "study", "reading pictures")
    picture = open_picture(path, None)
    if min(picture.size) > _CROP:
        scale = _CROP / min(picture.size)
        picture = picture.resize([round(side * scale) for side in picture.size], pil.Resampling.LANCZOS)
        left, top = ((side - _CROP) // 2 for side in picture.size)
        picture = picture.crop((left, top, left + _CROP, top + _CROP))
    pixels: NDArray[np.uint8] = np.array(picture)
    return pixels if pixels.ndim == 3 else pixels[..., None]


COMMAND = Command(
    summary="see the shifts: a contact sheet of every corruption and severity",
    text="The shifts that a study puts a classifier through.",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
