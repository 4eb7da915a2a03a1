"""Carry Tiny-ImageNet to a machine in a few files instead of 120,000, each small enough for a limit on their size.

    python pack.py pack ROOT PARTS --count 3     # part-0, part-1, part-2: 53 MB each
    python pack.py unpack PARTS ROOT             # on the other machine: the .npy files that data.py keeps in ROOT

ROOT is the folder that data.py describes. All images begin with one of two JPEG headers and end alike, so only what
lies between is kept, a third less than the files. Pixels are exactly those of the files; `unpack` compares their
SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError, run_script
from data import NAME, PARTS, class_names, decoded, others, save, test_files, training_files

END = b"\xff\xd9"
START_OF_SCAN = 0xDA
TEXTURES = "dtd10.npy"
OTHERS = "samples-others.npy"


def split_header(image: bytes) -> tuple[bytes, bytes]:
    """Return the header of a JPEG file and what follows, without the end mark.

    A header consists of segments: 0xFF, a kind, and the length of the rest in two bytes. "Start of scan" is the last.
    """
    position = 2
    while True:
        if image[position : position + 1] != b"\xff" or not image.endswith(END):
            raise ValueError("not a complete JPEG file")
        kind, length = image[position + 1], int.from_bytes(image[position + 2 : position + 4], "big")
        position += 2 + length
        if kind == START_OF_SCAN:
            return image[:position], image[position : -len(END)]


def pack(root: Path, target: Path, count: int) -> None:
    """Write the training, test and other images of `root` as `count` files into the folder `target`."""
    folder = root / NAME
    names = class_names(folder)
    headers: dict[bytes, int] = {}
    arrays: dict[str, np.ndarray] = {"names": np.array(names), "others": others("test", str(root))[0].numpy()}
    arrays["textures"] = np.load(root / TEXTURES)
    for part, (files, labels) in zip(PARTS, (training_files(folder, names, 0), test_files(folder, names)), strict=True):
        scans, kinds = [], []
        for file in files:
            try:
                header, scan = split_header(file.read_bytes())
            except ValueError as error:
                raise InputError(f"{file}: {error}; unpack the data again") from error
            kinds.append(headers.setdefault(header, len(headers)))
            scans.append(scan)
        arrays[f"{part}-scans"] = np.frombuffer(b"".join(scans), np.uint8)
        arrays[f"{part}-lengths"] = np.array([len(scan) for scan in scans], np.int64)
        arrays[f"{part}-headers"], arrays[f"{part}-labels"] = np.array(kinds), np.array(labels)
        arrays[f"{part}-digest"] = np.array(_digest(decoded(files)))
    arrays["headers"] = np.array([header.hex() for header in headers])
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    content = stream.getvalue()
    size = -(-len(content) // count)
    target.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        with atomic_path(target / f"part-{index}") as path:
            path.write_bytes(content[index * size : (index + 1) * size])
    print(f"{count} files of {size:,} bytes in {target}")


def unpack(source: Path, root: Path) -> None:
    """Write the images of the files in `source` as data.py keeps them in `root`."""
    files = sorted(source.glob("part-*"), key=lambda path: int(path.name.removeprefix("part-")))
    try:
        # all arrays at once: their checksums are compared before anything is written
        arrays = dict(np.load(io.BytesIO(b"".join(file.read_bytes() for file in files)), allow_pickle=False))
        headers = [bytes.fromhex(text) for text in arrays["headers"].tolist()]
    except (ValueError, OSError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{source}: its {len(files)} files part-* are not all that pack.py wrote") from error
    (root / NAME).mkdir(parents=True, exist_ok=True)
    (root / NAME / "wnids.txt").write_text("\n".join(arrays["names"].tolist()) + "\n")
    for part in PARTS:
        scans, ends = arrays[f"{part}-scans"].tobytes(), np.cumsum(arrays[f"{part}-lengths"]).tolist()
        pieces = zip([0, *ends], ends, arrays[f"{part}-headers"].tolist(), strict=False)
        images = decoded([io.BytesIO(headers[kind] + scans[start:end] + END) for start, end, kind in pieces])
        if _digest(images) != arrays[f"{part}-digest"].item():
            print(f"{part}: the pixels differ from those where the files were packed; is another libjpeg at work?")
        save(root / f"{NAME}-{part}-images.npy", images)
        save(root / f"{NAME}-{part}-labels.npy", arrays[f"{part}-labels"])
        print(f"{part}: {len(images):,} images")
    save(root / OTHERS, arrays["others"])
    save(root / TEXTURES, arrays["textures"])


def _digest(images: np.ndarray) -> str:
    return hashlib.sha256(images.tobytes()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="ROOT, or the folder with the files part-*")
    parser.add_argument("target", type=Path, help="the folder to write to")
    parser.add_argument("--count", type=int, default=3, help="number of files that `pack` writes (default 3)")
    options = parser.parse_args(arguments)
    if options.count < 1:
        raise InputError(f"--count: expected a number above 0, found {options.count}")
    try:
        if options.action == "pack":
            pack(options.source, options.target, options.count)
        else:
            unpack(options.source, options.target)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; ROOT is the folder that data.py describes") from error
    return 0


if __name__ == "__main__":
    run_script(main)
