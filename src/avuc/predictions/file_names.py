"""The name of a file of predictions must not say that it has another format."""

from __future__ import annotations

from pathlib import Path

from avuc.core.errors import InputError

# other suffixes, such as the .5 of "dropout-0.5", say nothing about the format
NUMPY = (".npz", ".npy")
OTHER = (
    ".csv",
    ".tsv",
    ".txt",
    ".parquet",
    ".feather",
    ".arrow",
    ".xlsx",
    ".json",
    ".pt",
    ".pth",
    ".pkl",
    ".pickle",
    ".joblib",
    ".h5",
    ".hdf5",
    ".mat",
    ".zip",
)


def check_file_name(path: str | Path) -> None:
    """Raise `InputError` if a file has the suffix of a format other than .safetensors.

    >>> check_file_name("predictions.safetensors")
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*NUMPY, *OTHER):
        return
    remedy = f"pass {str(Path(path).with_suffix('.safetensors'))!r}, which avuc evaluate reads, too"
    if suffix in NUMPY:
        remedy += ", or numpy.savez(path, probs=p.probs.cpu(), labels=p.labels.cpu())"
    raise InputError(f"{path}: save writes the format .safetensors, not {suffix}; {remedy}")
