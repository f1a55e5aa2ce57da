"""Baselines that kernels are compared with: cuBLASLt, PyTorch, CUTLASS, Triton and NumPy, each timed as its careful
user would call it."""
