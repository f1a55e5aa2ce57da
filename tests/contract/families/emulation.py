"""Kernels under the emulators of CUDA, in several orders of their threads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tirgemm.launch import Launch
from verification.emulator import cuda_emulator
from verification.emulator.operands import KernelCall, decode, encode
from verification.emulator.wgmma_on_cpu import Kernels

# As many ways to schedule as the model knows.
SEEDS = tuple(range(8))


def emulate(
    source: str, launch: Launch, case: KernelCall, folder: Path, orders: tuple[int, ...] = (0, 1, 6, 7, 16, 17)
) -> np.ndarray:
    """D as (batch, m, n) float64; AssertionError where it depends on the order in which threads run."""
    compiled = cuda_emulator.compile_source(source, launch, folder)
    results = [cuda_emulator.run(compiled, case, order) for order in orders]
    for other in results[1:]:
        assert np.array_equal(results[0], other, equal_nan=True), (
            f"{launch.kernels[-1].symbol}: a race: the result depends on the order"
        )
    return results[0]


def rounded(case: KernelCall) -> np.ndarray:
    """D of operands from ``KernelCall.integers``, rounded once to its dtype. For problems without activation."""
    assert case.gemm.act == "none"
    return decode(encode(case.expected()[0], case.gemm.out), case.gemm.out)


def check_exact(kernels: Kernels, case: KernelCall, seeds: Iterable[int] = SEEDS) -> None:
    """Assert that D is exactly right under every schedule. For a case of ``KernelCall.integers``."""
    expected = rounded(case)
    for seed in seeds:
        computed = kernels(case, seed)
        wrong = computed != expected
        assert not wrong.any(), (
            f"schedule {seed}: {wrong.sum()} of {wrong.size} elements are wrong, first at "
            f"{tuple(int(i) for i in np.argwhere(wrong)[0])}: {computed[wrong][0]} instead of {expected[wrong][0]}"
        )
