"""Programmatic dependent launch: every kernel of a call waits at its entry, and is launched so."""

from __future__ import annotations

import re

import pytest

from tirgemm.detect import device
from tirgemm.errors import BuildFailed
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.dependent_launch import build, waiting, with_dependent_launch

SOURCE = """
extern "C" __global__ void __launch_bounds__(32) first(float* __restrict__ a);
extern "C" __global__ void __launch_bounds__(32) first(float* __restrict__ a) {
  a[threadIdx.x] += 1;
}
extern "C" __global__ void __launch_bounds__(32) first_reduce(const float* a, float* b) { b[threadIdx.x] = a[1]; }
"""


def test_kernels_wait_before_anything_else_and_are_launched_so() -> None:
    kernels = (KernelLaunch("first", ()), KernelLaunch("first_reduce", (), attributes=(DEPENDENT_LAUNCH,)))
    binary = Binary(b"", "cubin", Launch((), (), kernels), {"kernel.cu": SOURCE, "module.py": "# text"}, (), {})
    built = with_dependent_launch(binary, "sm_90a")
    source = built.sources["kernel.cu"]
    for name in ("first", "first_reduce"):
        entry = re.search(rf"{name}\([^;{{]*\) \{{\n(.*)\n(.*)\n", source)
        assert entry is not None
        assert "griddepcontrol.launch_dependents;" in entry[1]
        assert "griddepcontrol.wait;" in entry[2]
    assert source.count("griddepcontrol.wait") == 2, "not in the declaration"
    assert [kernel.attributes for kernel in built.launch.kernels] == [(DEPENDENT_LAUNCH,)] * 2
    assert built.data.startswith(b"\x7fELF")
    assert built.sources["module.py"] == "# text"
    with pytest.raises(BuildFailed, match="the source defines 0 kernels second"):
        waiting(SOURCE, Launch((), (), (KernelLaunch("second", ()),)))


@pytest.mark.parametrize("place", ["cpu", "sm_80"])
def test_a_device_without_it_is_refused(place: str) -> None:
    gemm = Gemm.parse("16x64x64:f32:nt")
    where = device(place)
    config = family_named("simt" if where.kind == "cuda" else "x86").default(gemm, where, "isolated")
    with pytest.raises(BuildFailed, match=f"needs a GPU of sm_90 or newer; {place} is "):
        build(gemm, config, where)


def test_a_familys_kernels_are_built_so() -> None:
    gemm, where = Gemm.parse("64x64x64:f16:nt"), device("sm_90a")
    config = family_named("simt").default(gemm, where, "isolated")
    built = build(gemm, config, where)
    assert built.launch.kernels[0].attributes == (DEPENDENT_LAUNCH,)
    assert "griddepcontrol.wait" in built.sources["kernel.cu"]
