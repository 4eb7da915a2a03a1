"""Digests that identify data."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from avuc.data.arrays import Dataset
from avuc.data.decode import ImageFiles
from avuc.data.tensors import MemoryData, TensorData

DIGITS = 32  # digits of the SHA-256 that are kept


def shapes_of(data: MemoryData) -> dict[str, tuple[int, ...]]:
    """Return the shape of one example, by the name of the network's argument."""
    parts = {"inputs": data.inputs} if isinstance(data.inputs, Tensor) else data.inputs
    return {name: tuple(tensor.shape[1:]) for name, tensor in parts.items()}


def digest_of(data: MemoryData | ImageFiles) -> str:
    """Return a digest of inputs and labels; for streamed files, of file names and labels."""
    digest = hashlib.sha256(torch.as_tensor(data.labels).cpu().numpy().tobytes())
    if isinstance(data, Dataset):
        digest.update(repr(tuple(data.images.shape)).encode())
        digest.update(data.images.cpu().contiguous().numpy().data)
    elif isinstance(data, TensorData):
        digest.update(repr([tuple(data.labels.shape), shapes_of(data)]).encode())
        for part in [data.inputs] if isinstance(data.inputs, Tensor) else data.inputs.values():
            # as bytes, because NumPy has no bfloat16
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        digest.update("\0".join(data.texts).encode("utf-8", "surrogatepass"))
    else:
        digest.update(b"\n".join(bytes(name) for name in data.names))
    return digest.hexdigest()[:DIGITS]
