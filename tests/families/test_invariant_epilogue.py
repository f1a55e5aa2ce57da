"""The epilogue of invariant problems: no product that a compiler may contract with an addition, or not."""

from __future__ import annotations

import re

import pytest

from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.cuda import lower
from tirgemm.tuning.driver.nvrtc import BASE_FLAGS, compile_ptx

STORES = re.compile(r"\*\(\w+\*\)\(d_ptr|\bd_ptr\[")
SPELLED_OUT = re.compile(r"fmaf\(|__fadd_rn\(")
PLAIN = {"alpha": False, "beta": False, "bias": False, "act": "none"}


def source_of(gemm: Gemm, family: str, arch: str) -> str:
    device = named_device(arch)
    (able,) = (one for one in supporting(gemm, device) if one.name == family)
    return lower(able.instantiate(gemm, able.default(gemm, device, "sustained"), device), arch)[1]


def contracted(source: str, arch: str) -> int:
    """Multiply-adds that the compiler makes of a product and an addition."""

    def multiply_adds(allowed: str) -> int:
        flags = [flag for flag in BASE_FLAGS if not flag.startswith("--fmad")]
        ptx = compile_ptx(source, (f"--gpu-architecture={arch}", *flags, f"--fmad={allowed}"))
        return len(re.findall(r"\bfma\.rn\.(?:ftz\.)?f32\b", ptx))

    return multiply_adds("true") - multiply_adds("false")


@pytest.mark.parametrize(
    ("arch", "text", "family"),
    [
        ("sm_90a", "333x64x70:f32:tt:lda=337:alpha:beta:invariant", "simt"),
        ("sm_90a", "64x64x70:f32:nt:alpha:beta:bias:act=gelu:invariant", "simt"),
        ("sm_90a", "64x64x70:f32:nt:alpha:bias:act=silu:invariant", "simt"),
        ("sm_80", "64x64x64:f16:nt:alpha:beta:bias:invariant", "mma"),
        ("sm_80", "64x64x64:f16:nt:alpha:bias:act=gelu_tanh:invariant", "mma"),
        ("sm_80", "64x64x64:f16:nt:beta:act=silu:invariant", "mma"),
        ("sm_90a", "64x72x128:f16:nt:alpha:beta:act=relu:invariant", "wgmma"),
        ("sm_90a", "1..64x576x7168:bf16:nn:alpha:beta:invariant", "wgmma"),
        ("sm_90a", "250x201x200:bf16:tt:act=relu:lda=251:align=8:alpha:bias:invariant", "wgmma"),
        ("sm_90a", "64x576x7168:bf16:nt:alpha:bias:act=gelu_tanh:invariant", "wgmma"),
        ("sm_90a", "64x72x128:f16:nt:beta:invariant", "wgmma"),
        ("sm_90a", "64x72x128:f16:nt:bias:act=gelu_tanh:invariant", "wgmma"),
        ("sm_90a", "64x72x128:f16:nt:bias:act=silu:invariant", "wgmma"),
    ],
)
def test_the_compiler_contracts_nothing_of_an_invariant_epilogue(arch: str, text: str, family: str) -> None:
    gemm = Gemm.parse(text)
    invariant, free = (source_of(one, family, arch) for one in (gemm, gemm.with_(invariant=False)))
    # What it contracts of the sum over k, which ``simt`` alone writes as products and additions.
    of_the_sum = contracted(source_of(gemm.with_(**PLAIN), family, arch), arch) if family == "simt" else 0
    assert contracted(invariant, arch) == of_the_sum
    assert contracted(free, arch) > of_the_sum, "else the comparison says nothing"
    assert SPELLED_OUT.search(invariant)
    assert not SPELLED_OUT.search(free), "other kernels are as they were"
    assert STORES.findall(invariant) == STORES.findall(free), "vectors stay vectors"
