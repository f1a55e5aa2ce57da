"""Values of an activation over all of fp32, by the CUDA source on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.contract.families.emulation import emulate
from tirgemm.families import FAMILIES
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.reference.numbers import activate
from tirgemm.tuning.build import cuda
from verification.emulator.operands import KernelCall

_DEVICE = named_device("sm_90a")
_COUNT = 4000
# Errors of expf, of rsqrtf twice, of a sum and of two products, each as large as the CUDA manual lets it be.
_ROUNDINGS = 16
# Where exp(-x) exceeds fp32 the result is zero; exactly it would be this much at most.
_UNDERFLOW = 89 * np.exp(-88.7)


# The product's zero is positive, and negative once it is multiplied by -1.
@pytest.mark.parametrize(("alpha", "invariant"), [(1.0, False), (-1.0, False), (-1.0, True)])
def test_silu_of_any_fp32_is_that_of_fp64(alpha: float, invariant: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    largest = np.finfo(np.float32).max
    special = [0, np.inf, -np.inf, np.nan, largest, -largest, 65504, -65504, 1e-45, -1e-45, *range(-110, 111)]
    anywhere = rng.integers(0, 2**32, _COUNT, dtype=np.uint32).view(np.float32)
    x = np.concatenate([np.array(special, np.float32), anywhere, rng.uniform(-95, 95, _COUNT).astype(np.float32)])

    gemm = Gemm.parse(f"{x.size}x1x1:f32:nn:align=4:alpha:act=silu").with_(invariant=invariant)
    program = FAMILIES["simt"].instantiate(gemm, FAMILIES["simt"].default(gemm, _DEVICE, "sustained"), _DEVICE)
    host, source = cuda.lower(program, _DEVICE.arch)
    with np.errstate(invalid="ignore"):
        tensors = {"a": x.astype(np.float64)[None, :, None], "b": np.ones((1, 1, 1))}
    call = KernelCall(gemm, x.size, tensors, {"alpha": alpha})
    d = emulate(source, cuda.checked_launch(program, host), call, tmp_path, orders=(0,))[0, :, 0]

    with np.errstate(all="ignore"):
        # A sum begins with +0, to which -0 adds nothing.
        x = np.float32(alpha) * (x + np.float32(0))
        divided = x / (np.float32(1) + np.exp(-x))
        wanted = activate(x.astype(np.float64), "silu")
    for of in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(of(d), of(divided))
    numbers = ~np.isnan(divided)
    assert np.array_equal(np.signbit(d[numbers]), np.signbit(divided[numbers]))
    finite = np.isfinite(divided)
    error = np.abs(d[finite] - wanted[finite])
    assert (error <= _ROUNDINGS * 2.0**-24 * np.abs(wanted[finite]) + _UNDERFLOW).all()
