"""CUDA source with WMMA for the emulator: every lane holds whole fragments, and computes them."""

from __future__ import annotations

import re
from dataclasses import replace

from tirgemm.launch import Launch

# A fragment is 16 x 16 floats of every lane: which lane holds which element is the hardware's business.
_FRAGMENTS = """
#define make_half2(x, y) (half2{x, y})
namespace nvcuda { namespace wmma {
struct row_major; struct col_major; struct matrix_a; struct matrix_b; struct accumulator;
enum layout_t { mem_row_major, mem_col_major };
template <typename Use, int m, int n, int k, typename T, typename Layout = row_major>
struct fragment { float x[16][16]; };
template <typename L> struct across { static constexpr bool value = false; };
template <> struct across<col_major> { static constexpr bool value = true; };
template <typename Use, typename T, typename L>
inline void load_matrix_sync(fragment<Use, 16, 16, 16, T, L>& f, const T* p, unsigned ld) {
  if ((size_t)p % 32 || ld * sizeof(T) % 16) abort();
  for (int i = 0; i < 16; i++) for (int j = 0; j < 16; j++)
    f.x[i][j] = (float)(across<L>::value ? p[j * ld + i] : p[i * ld + j]);
}
template <typename T> inline void fill_fragment(fragment<accumulator, 16, 16, 16, T>& f, float value) {
  for (auto& row : f.x) for (float& x : row) x = value;
}
template <typename S, typename T, typename A, typename B>
inline void mma_sync(fragment<accumulator, 16, 16, 16, S>& d, const fragment<matrix_a, 16, 16, 16, T, A>& a,
                     const fragment<matrix_b, 16, 16, 16, T, B>& b, const fragment<accumulator, 16, 16, 16, S>& c) {
  for (int i = 0; i < 16; i++) for (int j = 0; j < 16; j++) {
    float sum = c.x[i][j];
    for (int k = 0; k < 16; k++) sum += a.x[i][k] * b.x[k][j];
    d.x[i][j] = (float)(S)sum;
  }
}
template <typename T>
inline void store_matrix_sync(T* p, const fragment<accumulator, 16, 16, 16, T>& f, unsigned ld, layout_t) {
  if ((size_t)p % 32 || ld * sizeof(T) % 16) abort();
  // A lane stores its part alone, so that who reads must wait for the others: no part that a lane would read again.
  for (int e = 31 - (threadIdx.x & 31); e < 256; e += 32) p[e / 16 * ld + e % 16] = (T)f.x[e / 16][e % 16];
}
}}
"""
_DEFINED = re.compile(r"namespace nvcuda \{ namespace wmma \{.*?\n\}\}\n", re.DOTALL)


def emulated(source: str, launch: Launch) -> tuple[str, Launch]:
    """``source`` and ``launch`` for threads in x alone, with fragments that g++ takes."""
    text, replacements = _DEFINED.subn(lambda _: _FRAGMENTS, source)
    assert replacements == 1, "the source defines no fragments"
    # Lanes are threads in x, warps in y; the other kernels have one-dimensional blocks.
    pieces = re.split(r'(?=extern "C" __global__)', text)
    for i, piece in enumerate(pieces):
        if "threadIdx.y" in piece:
            folded = piece.replace("((int)threadIdx.x)", "(((int)threadIdx.x) & 31)")
            pieces[i] = folded.replace("((int)threadIdx.y)", "(((int)threadIdx.x) >> 5)")
    kernels = tuple(replace(kernel, block=(kernel.block[0] * kernel.block[1], 1, 1)) for kernel in launch.kernels)
    return "".join(pieces), replace(launch, kernels=kernels)
