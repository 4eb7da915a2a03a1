"""Draw wrong pixels and uncertainty side by side, from the store of a segmentation study, for its page.

    python reproduction/pages/study_maps.py out/studies/camvid docs/figures/camvid-maps.png "Cross-entropy" "Ensemble"

The figure has a row for each method and a pair of columns for each example: wrong pixels (red), and entropy from black
(0) to white (the highest possible). Pixels without a label are white in both. The store keeps the examples with the
most mistakes for their uncertainty; the figure shows those that most of the methods have. It leaves out the
photographs, which we may not publish.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from avuc.core.errors import InputError, run_script
from avuc.study.store.store import Store

EXAMPLES, SCALE, GAP = 3, 2, 4
Picture = np.ndarray


def maps_of(store: Store, method: str, shift: str, severity: int) -> dict[str, tuple[Picture, Picture]]:
    """Return the name of each stored example → its wrong pixels and its entropy."""
    query = "SELECT data FROM shown WHERE method=? AND shift=? AND severity=? ORDER BY seed LIMIT 1"
    stored = list(store.select(query, (method, shift, severity)))
    if not stored:
        raise InputError(f"{method} on {shift}: the store shows no examples; name a method of the study")
    maps = {}
    for entry in json.loads(stored[0][0])["mistakes"]:
        if "png" in entry:
            with Image.open(io.BytesIO(base64.b64decode(entry["png"]))) as opened:
                pixels = np.asarray(opened.convert("RGB"))
            width = (pixels.shape[1] - 2) // 3  # three parts with a line between them: image, mistakes, entropy
            maps[entry["is"]] = pixels[:, width + 1 : 2 * width + 1], pixels[:, 2 * width + 2 :]
    return maps


def chosen(all_maps: Sequence[dict[str, tuple[Picture, Picture]]], count: int = EXAMPLES) -> list[str]:
    """Return the names of the examples that most methods have, in the order of the first method."""
    counts = Counter(name for maps in all_maps for name in maps)
    names = sorted(counts, key=lambda name: -counts[name])[:count]
    order = {name: index for index, name in enumerate(all_maps[0])}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def picture(all_maps: Sequence[dict[str, tuple[Picture, Picture]]], names: Sequence[str]) -> Picture:
    """Return the figure: one row for each method, white where a method does not have the example."""
    empty = np.full_like(next(wrong for maps in all_maps for wrong, _ in maps.values()), 255)
    gap = np.full((empty.shape[0], GAP, 3), 255, np.uint8)
    rows = []
    for maps in all_maps:
        pairs = [maps.get(name, (empty, empty)) for name in names]
        parts = [part for wrong, entropy in pairs for part in (wrong, gap[:, :1], entropy, gap)]
        rows += [np.concatenate(parts[:-1], axis=1)]
        rows += [np.full((GAP, rows[0].shape[1], 3), 255, np.uint8)]
    return np.concatenate(rows[:-1]).repeat(SCALE, 0).repeat(SCALE, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("study", type=Path, help="folder of the study")
    parser.add_argument("target", type=Path, help="the PNG file to write")
    parser.add_argument("methods", nargs="+", help="names of methods, from top to bottom")
    parser.add_argument("--shift", default="clean", help="the test set (default: clean)")
    parser.add_argument("--severity", type=int, default=0, help="its intensity (default: 0)")
    args = parser.parse_args(arguments)
    store = Store(args.study, create=False)
    try:
        all_maps = [maps_of(store, method, args.shift, args.severity) for method in args.methods]
    finally:
        store.close()
    names = chosen(all_maps)
    if not names:
        raise InputError(f"{args.study}: its examples are no images; this is for segmentation")
    args.target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(all_maps, names)).save(args.target, optimize=True)
    print(f"{args.target}: {', '.join(names)}; from the top: {', '.join(args.methods)}")
    return 0


if __name__ == "__main__":
    run_script(main)
