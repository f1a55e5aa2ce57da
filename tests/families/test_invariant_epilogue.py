"""The epilogue of invariant problems: no product that a compiler may contract with an addition, or not."""

from __future__ import annotations

import re

import pytest

from tirgemm.families import supporting
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.cuda import lower

STORES = re.compile(r"\*\(\w+\*\)\(d_ptr|\bd_ptr\[")
# Which of alpha * sum and beta * C an addition is contracted with was chosen anew for every output of a thread, and so
# was whether alpha * sum is contracted with the bias.
OPEN = re.compile(r"\(alpha \* [^()]*(\([^()]*\)[^()]*)*\) \+|\+ \(?beta(_\d+)? \*|\+ \(\(\(0x1\.6e4e26")


@pytest.mark.parametrize(
    ("arch", "text", "family"),
    [
        ("sm_90a", "333x64x70:f32:tt:lda=337:alpha:beta:invariant", "simt"),
        ("sm_90a", "64x64x70:f32:nt:alpha:beta:bias:act=gelu:invariant", "simt"),
        ("sm_80", "64x64x64:f16:nt:alpha:beta:bias:invariant", "mma"),
        ("sm_90a", "64x72x128:f16:nt:alpha:beta:act=relu:invariant", "wgmma"),
        ("sm_90a", "1..64x576x7168:bf16:nn:alpha:beta:invariant", "wgmma"),
        ("sm_90a", "250x201x200:bf16:tt:act=relu:lda=251:align=8:alpha:bias:invariant", "wgmma"),
        ("sm_90a", "64x576x7168:bf16:nt:alpha:bias:act=gelu_tanh:invariant", "wgmma"),
        ("sm_90a", "64x72x128:f16:nt:beta:invariant", "wgmma"),
        ("sm_90a", "64x72x128:f16:nt:bias:act=gelu_tanh:invariant", "wgmma"),
        ("sm_80", "64x64x64:f16:nt:alpha:bias:act=gelu_tanh:invariant", "mma"),
        ("sm_90a", "64x64x70:f32:nt:alpha:bias:invariant", "simt"),
    ],
)
def test_every_product_is_added_by_a_fused_multiply_add(arch: str, text: str, family: str) -> None:
    device, gemm = named_device(arch), Gemm.parse(text)
    sources = {}
    for problem in (gemm, gemm.with_(invariant=False)):
        (able,) = (one for one in supporting(problem, device) if one.name == family)
        config = able.default(gemm, device, "sustained")
        sources[problem] = lower(able.instantiate(problem, config, device), arch)[1]
    assert "fmaf(" in sources[gemm]
    assert not OPEN.search(sources[gemm])
    free = sources[gemm.with_(invariant=False)]
    assert "fmaf" not in free, "other kernels are as they were"
    assert STORES.findall(sources[gemm]) == STORES.findall(free), "vectors stay vectors"
