"""Start the ranks of a data-parallel run where torchrun has set them up, and end them with a clear word."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from avuc.core.errors import InputError

__all__ = ["launched"]


@contextlib.contextmanager
def launched(device: str, *, timeout_seconds: float = 600.0) -> Iterator[torch.device]:
    """The device of this process; under torchrun inside a process group (NCCL for GPUs, gloo otherwise).

    A rank that waits longer than the timeout for the others gives up: nobody hangs for ever on a machine that is gone.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield torch.device(device)
        return
    gpu = torch.device(device).type == "cuda"
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device(device)
    if gpu:
        torch.cuda.set_device(place)
    limit = datetime.timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group("nccl" if gpu else "gloo", timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the {os.environ['WORLD_SIZE']} ranks did not find each other ({str(error).splitlines()[0][:160]}); "
            "start them with torchrun"
        ) from error
    try:
        yield place
    finally:
        # with a peer gone an orderly goodbye is not possible; ours must not hide the reason
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
