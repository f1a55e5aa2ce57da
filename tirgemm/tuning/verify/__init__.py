"""Verification of a packaged kernel against an fp64 reference: exact and normal tests, poisoned outputs, guard bands.

The same flow on every device (``flow``), over NumPy on the CPU (``host``) and over our own plain CUDA kernels on a
GPU (``cuda``). What an error may be is in ``bound``; which cases run in ``plan``.
"""
