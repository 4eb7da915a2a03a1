"""Kernels in CUDA C++ for what no library does fast: compiled when first used, on GPUs with bf16 tensor cores.

Each has the same mathematics in plain torch beside it, which runs everywhere else. `device.cuh` names the few GPU
instructions they are made of; the tests run the very same sources on a CPU against an emulation of these.
"""
