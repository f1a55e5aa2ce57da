"""Static analysis of kernels: shared-memory banks, coalescing, occupancy, roofline, machine code. No GPU needed."""
