"""Damaged copies of sound files, each from one number, judged by the command in this process.

    python tests/evaluation/files/fuzz.py FIRST COUNT   cases FIRST … FIRST + COUNT - 1; prints each failure as JSON

Every case must end in the right figures, or in one line and exit code 2. A format with a checksum (.npz) must never
give other figures than the sound file; the others must at least keep their number of rows.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import random
import resource
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from avuc import Predictions
from avuc.cli import main
from avuc.core.tensor_file import write_tensors

ROWS = 60
LIMIT_GB = 0.05
# address space beyond what the imports take
SPARE_BYTES = 1_500_000_000
LABELS = np.arange(ROWS) % 3
NAMES = np.array(["ant", "bee", "cow"])[LABELS]
LOGITS = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32) + 2 * np.eye(3, dtype=np.float32)[LABELS]
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def npz(path: Path, pack: int, **arrays: Any) -> None:
    with zipfile.ZipFile(path, "w", pack) as archive:
        for name, value in arrays.items():
            member = io.BytesIO()
            np.save(member, value)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue(), pack)


def table(path: Path, head: list[str], scores: np.ndarray, mark: str, labels: np.ndarray) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow(head)
        writer.writerows([label, *row] for label, row in zip(labels.tolist(), scores.tolist(), strict=True))


def columns(names: list[str], labels: Any, scores: np.ndarray) -> pa.Table:
    return pa.table({name: scores[:, place] for place, name in enumerate(names)} | {"label": labels})


SOUND: list[tuple[str, Callable[[Path], None]]] = [
    (".npz", lambda path: npz(path, zipfile.ZIP_STORED, logits=LOGITS, labels=LABELS)),
    (".npz", lambda path: npz(path, zipfile.ZIP_DEFLATED, probs=PROBS, y=LABELS)),
    (".npz", lambda path: npz(path, zipfile.ZIP_LZMA, scores=LOGITS, targets=LABELS, more=LOGITS)),
    (".npz", lambda path: npz(path, zipfile.ZIP_BZIP2, logits=np.stack([LOGITS, LOGITS]), labels=LABELS)),
    (".npy", lambda path: np.save(path, LOGITS)),
    (".npy", lambda path: np.save(path, np.asfortranarray(PROBS.astype(np.float64)))),
    (".safetensors", lambda path: write_tensors(path, {"logits": torch.tensor(LOGITS), "y": torch.tensor(LABELS)})),
    (".safetensors", lambda path: Predictions(torch.tensor(PROBS), torch.tensor(LABELS)).save(path)),
    (".csv", lambda path: table(path, ["label", "ant", "bee", "cow"], PROBS, ",", NAMES)),
    (".csv", lambda path: table(path, ["y", "logits_1", "logits_0", "logits_2"], LOGITS[:, [1, 0, 2]], ";", LABELS)),
    (".parquet", lambda path: pq.write_table(columns(["logits_0", "logits_1", "logits_2"], LABELS, LOGITS), path)),
    (".parquet", lambda path: pq.write_table(columns(["ant", "bee", "cow"], NAMES.tolist(), LOGITS), path)),
    (".parquet", lambda path: pq.write_table(pa.table({"probs": PROBS.tolist(), "y": LABELS}), path)),
]
# each .parquet is first read by another process, which takes its time
WEIGHTS = [4 if suffix != ".parquet" else 1 for suffix, _ in SOUND]
HOSTILE = [b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", (2**63).to_bytes(8, "little"), b"\x80" * 9 + b"\x01", b"\x00"]
WORDS = [
    b"logits",
    b"labels",
    b"probs",
    b"scores",
    b"targets",
    b"label",
    b"y",
    b".npy",
    b"F32",
    b"<f4",
    b"shape",
    b"60",
]
OTHERS = [
    b"logits",
    b"probs",
    b"labels",
    b"",
    b"\xff\xfe",
    b"../../x",
    b"9" * 40,
    b"I64",
    b"-1",
    b"<f8",
    b"\x1b[2J",
    b"|O",
]


def flip(content: bytearray, rng: random.Random, _: list[bytes]) -> None:
    for _ in range(rng.choice([1, 1, 2, 8])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def cut(content: bytearray, rng: random.Random, _: list[bytes]) -> None:
    del content[rng.randrange(len(content)) :]


def splice(content: bytearray, rng: random.Random, others: list[bytes]) -> None:
    """The beginning or the end of another file."""
    other = rng.choice(others)
    size = rng.choice([1, 4, 8, 64, 128, 400])
    if rng.random() < 0.5:
        content[:size] = other[:size]
    else:
        content[-size:] = other[-size:]


def plant(content: bytearray, rng: random.Random, _: list[bytes]) -> None:
    """A number that claims too much, near one of the ends, where headers are."""
    piece, reach = rng.choice(HOSTILE), min(len(content), 200)
    place = rng.randrange(reach) if rng.random() < 0.5 else len(content) - 1 - rng.randrange(reach)
    content[place : place + len(piece)] = piece


def rename(content: bytearray, rng: random.Random, _: list[bytes]) -> None:
    there = [word for word in WORDS if word in content]
    if there:
        old, new = rng.choice(there), rng.choice(OTHERS)
        if rng.random() < 0.5:
            new = (new * len(old))[: len(old)] if new else b"z" * len(old)  # in place: the offsets stay right
        content[:] = content.replace(old, new, rng.choice([1, -1]))


def repeat(content: bytearray, rng: random.Random, _: list[bytes]) -> None:
    """A piece once more, or left out."""
    start = rng.randrange(len(content))
    piece = content[start : start + rng.choice([1, 7, 64, 500])]
    if rng.random() < 0.5:
        content[start:start] = piece
    else:
        del content[start : start + len(piece)]


DAMAGE = [flip, flip, cut, splice, plant, plant, rename, repeat]


def judge(path: Path, out: Path) -> tuple[int, str, dict[str, Any] | None]:
    """The command's exit code, its standard error, and the figures."""
    out.unlink(missing_ok=True)
    error = io.StringIO()
    labels = ["--labels", str(path.with_name("truth.npy"))] if path.suffix == ".npy" else []
    words = ["evaluate", str(path), "--replicates", "0", "--json", str(out), "--max-gb", str(LIMIT_GB), *labels]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        code = main(words)
    figures = json.loads(out.read_text(encoding="utf-8")) if out.exists() else None
    return code, error.getvalue(), figures


def verdict(suffix: str, damage: str, code: int, error: str, figures: Any, sound: Any) -> str | None:
    """What is wrong with the outcome, if anything."""
    if code == 2:
        return None if error.count("\n") == 1 and figures is None else "exit code 2 without one line, or with figures"
    if code != 0 or figures is None:
        return f"exit code {code}"
    if suffix == ".npz" and any(figures[key] != sound[key] for key in ("n", "num_classes", "metrics", "samples")):
        return "other figures, although a checksum tells"
    if suffix != ".csv" and (figures["n"] != sound["n"] or damage == "cut"):
        return "rows are missing"
    return None


def run(first: int, count: int, folder: Path) -> list[dict[str, Any]]:
    np.save(folder / "truth.npy", LABELS)
    sound: list[tuple[bytes, Any]] = []
    for suffix, write in SOUND:
        path = folder / f"case{suffix}"
        write(path)
        code, error, figures = judge(path, folder / "out.json")
        assert code == 0, error
        sound.append((path.read_bytes(), figures))
    bad = []
    for seed in range(first, first + count):
        rng = random.Random(seed)
        kind = rng.choices(range(len(SOUND)), WEIGHTS)[0]
        suffix, content = SOUND[kind][0], bytearray(sound[kind][0])
        damage = rng.choice(DAMAGE)
        damage(content, rng, [one for one, _ in sound])
        path = folder / f"case{suffix}"
        path.write_bytes(content)
        try:
            code, error, figures = judge(path, folder / "out.json")
            problem = verdict(suffix, damage.__name__, code, error, figures, sound[kind][1])
            if bytes(content) == sound[kind][0]:
                problem = None if code == 0 and figures == sound[kind][1] else "an undamaged copy gives other figures"
        except BaseException:
            problem, error = traceback.format_exc(), ""
        if problem:
            bad.append({"seed": seed, "kind": kind, "suffix": suffix, "damage": damage.__name__})
            bad[-1] |= {"problem": problem, "error": error}
    return bad


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        # everything is imported and loaded before the memory is limited
        Predictions(torch.tensor(PROBS), torch.tensor(LABELS)).save(Path(place) / "warm.safetensors")
        judge(Path(place) / "warm.safetensors", Path(place) / "out.json")
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, used + SPARE_BYTES))
        for one in run(int(sys.argv[1]), int(sys.argv[2]), Path(place)):
            print(json.dumps(one), flush=True)
