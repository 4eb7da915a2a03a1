"""Join the process group of a data-parallel run that torchrun has started, and leave it at the end."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from avuc.core.errors import InputError

_failed = False


def group_failed() -> bool:
    """Return whether this process was in a process group that ended with an error, most likely of another rank.

    Gloo then may abort the process while Python shuts down, which would replace its exit code.
    """
    return _failed


@contextlib.contextmanager
def launched(device: str, *, timeout_seconds: float = 600.0) -> Iterator[torch.device]:
    """Yield the device of this process; under torchrun, inside a process group (NCCL for GPUs, gloo otherwise).

    Args:
        device: "cuda" takes the GPU with the number of the local rank.
        timeout_seconds: a rank that waits longer than this for the others raises an error.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield torch.device(device)
        return
    gpu = torch.device(device).type == "cuda"
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device(device)
    if gpu:
        torch.cuda.set_device(own)
    limit = datetime.timedelta(seconds=timeout_seconds)
    try:
        dist.init_process_group("nccl" if gpu else "gloo", timeout=limit)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the {os.environ['WORLD_SIZE']} ranks did not find each other ({str(error).splitlines()[0][:160]}); "
            "start them with torchrun"
        ) from error
    try:
        yield own
    except BaseException:
        global _failed
        _failed = True
        raise
    finally:
        # this fails if another rank is gone; the error must not hide the reason
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
