"""`avuc evaluate` on large files: time, rows per second, and peak memory compared with the size of the file.

    python benchmarks/bench_evaluate_scale.py              # 5 million rows and 50,000 × 1,000
    python benchmarks/bench_evaluate_scale.py --large      # and 50 million × 10, 500,000 × 1,000 (2 GB each)

Files are written in blocks into a temporary folder (at most two at a time) and removed after use. Each line is one
run of the command in its own process. Ratios compare processor time, which depends less on other load than elapsed
time. The lines of other libraries show the ECE of torchmetrics and netcal for the same .npy file, also in their own
process; both need all probabilities in memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BLOCK = 1 << 22
PEERS = {
    "torchmetrics ECE": """
from torchmetrics.functional.classification import multiclass_calibration_error
logits, labels = (torch.from_numpy(np.load(path)) for path in sys.argv[1:])
print(float(multiclass_calibration_error(logits.softmax(-1), labels.long(), logits.shape[1], n_bins=15)))""",
    "netcal ECE": """
from netcal.metrics import ECE
logits, labels = (torch.from_numpy(np.load(path)) for path in sys.argv[1:])
print(float(ECE(15).measure(logits.softmax(-1).numpy(), labels.numpy())))""",
}


def blocks(rows: int, classes: int, seed: int):
    """Logits of an overconfident model and the labels, in blocks."""
    rng = np.random.default_rng(seed)
    step = BLOCK // classes
    for start in range(0, rows, step):
        count = min(step, rows - start)
        logits = rng.standard_normal((count, classes), np.float32)
        labels = rng.integers(0, classes, count)
        logits[np.arange(count), labels] += rng.gamma(2.0, 1.5, count).astype(np.float32)
        yield logits, labels.astype(np.int32)


def write_npy(folder: Path, rows: int, classes: int, seed: int) -> Path:
    path = folder / f"logits_{rows}_{classes}_{seed}.npy"
    files = [(path, "<f4", (rows, classes)), (folder / path.name.replace("logits", "labels"), "<i4", (rows,))]
    streams = []
    for name, kind, shape in files:
        streams.append(name.open("wb"))
        header = {"descr": kind, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(streams[-1], header)
    for parts in blocks(rows, classes, seed):
        for stream, part in zip(streams, parts, strict=True):
            stream.write(part.data)
    for stream in streams:
        stream.close()
    return path


def write_parquet(folder: Path, rows: int, classes: int, seed: int) -> Path:
    """One column per class up to 100 classes, else one list column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, writer = folder / f"logits_{rows}_{classes}_{seed}.parquet", None
    for logits, labels in blocks(rows, classes, seed):
        if classes <= 100:
            table = pa.table({f"logits_{k}": logits[:, k] for k in range(classes)} | {"label": labels})
        else:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(logits.reshape(-1)), classes)
            table = pa.table({"logits": lists, "label": labels})
        writer = writer or pq.ParquetWriter(path, table.schema, use_dictionary=False)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return path


def measured(command: list[str]) -> tuple[float, float, float]:
    """Elapsed seconds, processor seconds and peak memory in bytes of a process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"{' '.join(command[:6])} …: {said[-2000:]}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0


def line(what: str, path: Path, rows: int, command: list[str], *, ratio_to: float | None = None) -> float:
    seconds, busy, peak = measured(command)
    size = path.stat().st_size
    ratio = "" if ratio_to is None else f"  {busy / ratio_to:4.2f} × without intervals"
    print(
        f"{what:<46} {seconds:7.1f} s ({busy:6.1f} s CPU)  {rows / seconds / 1e6:6.2f} M rows/s  "
        f"peak {peak / 1e9:5.2f} GB = {peak / size:5.2f} × the file{ratio}",
        flush=True,
    )
    return busy


def case(folder: Path, rows: int, classes: int, *, peers: bool) -> None:
    avuc = [sys.executable, "-m", "avuc", "evaluate"]
    for write in (write_npy, write_parquet):
        path = write(folder, rows, classes, 0)
        name = f"{rows:,} × {classes:,} {path.suffix}"
        print(f"{name}: {path.stat().st_size / 1e9:.2f} GB")
        plain = line(f"{name}, no intervals", path, rows, [*avuc, str(path), "--replicates", "0"])
        line(f"{name}, intervals", path, rows, [*avuc, str(path)], ratio_to=plain)
        other = write(folder, rows // 2, classes, 1)
        both = [*avuc, str(path), "--ood", str(other)]
        plain = line(f"{name}, --ood, no intervals", path, rows, [*both, "--replicates", "0"])
        line(f"{name}, --ood, intervals", path, rows, both, ratio_to=plain)
        other.unlink()
        if peers and path.suffix == ".npy":
            labels = str(path).replace("logits", "labels")
            for peer, code in PEERS.items():
                program = "import sys, numpy as np, torch\n" + code
                line(f"{name}, {peer}", path, rows, [sys.executable, "-c", program, str(path), labels])
        for old in folder.iterdir():
            old.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also 50 million × 10 and 500,000 × 1,000")
    parser.add_argument("--folder", help="where the files go (default: the system's temporary folder)")
    options = parser.parse_args()
    cases = [(5_000_000, 10, True), (150_000, 1_000, True)]
    if options.large:
        cases += [(50_000_000, 10, False), (500_000, 1_000, False)]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for rows, classes, peers in cases:
            case(Path(folder), rows, classes, peers=peers)


if __name__ == "__main__":
    main()
