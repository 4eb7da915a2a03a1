"""CUDA C++ kernels for GPUs with bf16 tensor cores, compiled when they are first used (docs/kernels.md).

Each kernel has the same mathematics in plain torch next to it, which runs everywhere else. `device.cuh` names the GPU
instructions the kernels use; the tests run the same sources on a CPU, with an emulation of these instructions.
"""
