"""A kernel written by hand in C that packs B by itself, as the x86 family does, for any problem by rows with B by
columns."""

from __future__ import annotations

from typing import Any

from tests.helpers.artifact_samples import TRUST, packed, packed_set, shared_object
from tirgemm.artifact import Kernel, load
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Pointer, Size, Workspace, scalar_args, tensor_args

# packed_b is B by rows, each element plus one, so that a result of what was not packed shows.
_SOURCE = r"""
KERNEL(pack_b) {
  const float* b = args[0].v.p;
  float* packed = args[1].v.p;
  const int64_t k = args[2].v.i;
  if (count != 3) { TVMFFIErrorSetRaisedFromCStr("TypeError", "wrong argument count"); return -1; }
  for (int64_t j = 0; j < GEMM_N; ++j) packed[k * GEMM_N + j] = b[j * GEMM_K + k] + 1;
  return 0;
}
KERNEL(multiply) {
  const float *a = args[0].v.p, *packed = args[1].v.p;
  float* d = args[2].v.p;
  const int64_t row = args[4].v.i;
  if (count != 5) { TVMFFIErrorSetRaisedFromCStr("TypeError", "wrong argument count"); return -1; }
  for (int64_t j = 0; j < GEMM_N; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < GEMM_K; ++k) sum += a[row * GEMM_K + k] * (packed[k * GEMM_N + j] - 1);
    d[row * GEMM_N + j] = sum;
  }
  return 0;
}
"""


def packing_kernel(text: str, **changes: Any) -> Kernel:
    """The kernel of a dense fp32 problem of layout nt; ``changes`` are of its Launch."""
    return load(packed(Gemm.parse(text), **_packing(Gemm.parse(text), **changes)), trust=TRUST)


def packing_set(text: str, highs: tuple[int, ...], plain: int | None = None) -> Kernel:
    """A kernel set of a problem, a kernel up to each of ``highs``; that of the index ``plain`` packs nothing."""
    gemm = Gemm.parse(text)
    lows = [gemm.m_min, *(high + 1 for high in highs)]
    members = {
        index: _packing(gemm.with_(m=Range(lows[index], high))) for index, high in enumerate(highs) if index != plain
    }
    return load(packed_set(gemm, highs, members=members), trust=TRUST)


def _packing(gemm: Gemm, **changes: Any) -> dict[str, Any]:
    """Launch and binary of a kernel that packs."""
    values: dict[str, Any] = {
        "kernels": (
            KernelLaunch("pack_b", (Pointer("b"), Pointer("packed_b")), (gemm.k, 1, 1)),
            KernelLaunch(
                "multiply",
                (Pointer("a"), Pointer("packed_b"), Pointer("d"), Size(gemm.m_dim)),
                (gemm.m_dim, 1, 1),
            ),
        ),
        "workspaces": (Workspace("packed_b", 4 * gemm.n * gemm.k),),
    }
    launch = Launch(tensor_args(gemm), scalar_args(gemm), **(values | changes))
    binary = shared_object(_SOURCE, f"-DGEMM_N={gemm.n}", f"-DGEMM_K={gemm.k}")
    return {"launch": launch, "binary": binary}
