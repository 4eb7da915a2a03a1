"""NVIDIA's Multi-Process Service, with which the kernels of several processes run on one GPU at the same time.

`run_many.py --mps` starts it for its studies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

MPS = "nvidia-cuda-mps-control"
# environment of a client whose kernels wait for those of the others, which would slow a small network down
LOW_PRIORITY = {"CUDA_MPS_CLIENT_PRIORITY": "1"}


@contextlib.contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """Start the service; yield what its clients need in their environment. Without its program there is nothing."""
    if shutil.which(MPS) is None:
        print(f"{MPS}: not found; the studies take turns on the GPU", file=sys.stderr)
        yield {}
        return
    # a short path: it becomes the name of a socket
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if subprocess.run([MPS, "-d"], env={**os.environ, **own}, check=False).returncode:
            print(f"{MPS}: did not start; the studies take turns on the GPU", file=sys.stderr)
            yield {}
            return
        try:
            yield own
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run([MPS], input=b"quit\n", env={**os.environ, **own}, check=False, timeout=20)
