"""Triton's persistent matmul, after the idea of its tutorial 09: as many programs as SMs, each walks over tiles of D.

The loop over tiles and the loop over k are flattened into one, so that the loads of the next tile overlap the end of
this one. Operands come through tensor descriptors (TMA) where their rows lie 16 bytes apart, else through pointers.
Sizes are run-time values: one compilation serves every shape. Importing this file needs Triton.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _place(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile, in an order that stays within GROUP rows of tiles: what they share remains in L2."""
    in_group = GROUP * tiles_n
    first = tile // in_group * GROUP
    height = min(tiles_m - first, GROUP)
    within = tile % in_group
    return first + within % height, within // height


@triton.jit
def _block(pointer, row, col, rows, cols, ld, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Addresses and mask of a block of a row-major matrix of rows x cols."""
    i = row + tl.arange(0, HEIGHT)
    j = col + tl.arange(0, WIDTH)
    return pointer + i[:, None].to(tl.int64) * ld + j[None, :], (i[:, None] < rows) & (j[None, :] < cols)


@triton.jit
def _loaded(matrix, row, col, rows, cols, ld, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, BY_TMA: tl.constexpr):
    """A block of a row-major matrix, 0 outside of it."""
    if BY_TMA:
        block = matrix.load([row, col])
    else:
        addresses, mask = _block(matrix, row, col, rows, cols, ld, HEIGHT, WIDTH)
        block = tl.load(addresses, mask=mask, other=0.0)
    return block


@triton.jit(do_not_specialize=["m", "n", "k", "lda", "ldb", "ldd", "programs"])
def matmul(
    a,
    b,
    d,
    m,
    n,
    k,
    lda,
    ldb,
    ldd,
    programs,
    TRANS_A: tl.constexpr,
    TRANS_B: tl.constexpr,
    A_BY_TMA: tl.constexpr,
    B_BY_TMA: tl.constexpr,
    D_BY_TMA: tl.constexpr,
    SUMS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """D = A B. ``a``, ``b`` and ``d`` are descriptors (D's of half a tile's columns) or pointers; ``SUMS`` is a
    dtype."""
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    steps = tl.cdiv(k, TILE_K)
    # A counter of its own for the store: the flattened loop would otherwise carry the loads' one through every step.
    stored = tl.program_id(0) - programs
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True, warp_specialize=WARP_SPECIALIZE):
        tile_m, tile_n = _place(tile, tiles_m, tiles_n, GROUP)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        sums = tl.zeros((TILE_M, TILE_N), dtype=SUMS)
        for step in range(steps):
            at = step * TILE_K
            if TRANS_A:
                left = _loaded(a, at, row, k, m, lda, TILE_K, TILE_M, A_BY_TMA).T
            else:
                left = _loaded(a, row, at, m, k, lda, TILE_M, TILE_K, A_BY_TMA)
            if TRANS_B:
                right = _loaded(b, col, at, n, k, ldb, TILE_N, TILE_K, B_BY_TMA).T
            else:
                right = _loaded(b, at, col, k, n, ldb, TILE_K, TILE_N, B_BY_TMA)
            sums = tl.dot(left, right, sums, out_dtype=SUMS)
        stored += programs
        tile_m, tile_n = _place(stored, tiles_m, tiles_n, GROUP)
        row = tile_m * TILE_M
        col = tile_n * TILE_N
        if D_BY_TMA:
            # By halves: staging half a tile in shared memory leaves room for another stage of loads.
            halves = tl.permute(tl.reshape(sums, (TILE_M, 2, TILE_N // 2)), (0, 2, 1))
            lower, upper = tl.split(halves)
            d.store([row, col], lower.to(d.dtype))
            d.store([row, col + TILE_N // 2], upper.to(d.dtype))
        else:
            addresses, mask = _block(d, row, col, m, n, ldd, TILE_M, TILE_N)
            tl.store(addresses, sums.to(d.dtype.element_ty), mask=mask)
