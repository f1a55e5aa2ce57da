"""Triton's persistent matmul, after the idea of its tutorial 09: as many programs as SMs, each walks over tiles of D.

The loop over tiles and the loop over k are flattened into one, so that the loads of the next tile overlap the end of
this one. Operands come through tensor descriptors (TMA) where their rows lie 16 bytes apart, else through pointers.
Sizes are run-time values: a compilation for each of what 16 divides serves every shape. Importing this file needs
Triton.
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
def _loaded(
    matrix,
    row,
    col,
    rows,
    cols,
    ld,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BY_TMA: tl.constexpr,
    K_MAJOR: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A block of a row-major matrix, 0 where k ends. With pointers, rows that there are not read row 0, whose sums
    nobody stores."""
    if BY_TMA:
        block = matrix.load([row, col])
    else:
        i = row + tl.arange(0, HEIGHT)
        j = col + tl.arange(0, WIDTH)
        if K_MAJOR:
            mask = (j < cols)[None, :]
            i = tl.where(i < rows, i, 0)
        else:
            mask = (i < rows)[:, None] & (j < cols)[None, :]
        if WIDE:
            i = i.to(tl.int64)
        block = tl.load(matrix + i[:, None] * ld + j[None, :], mask=mask, other=0.0)
    return block


# Sizes and strides are specialised: those that 16 divides let the compiler copy 16 bytes at once.
@triton.jit(do_not_specialize=["m", "programs"])
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
    WIDE: tl.constexpr,
):
    """D = A B. ``a``, ``b`` and ``d`` are descriptors (D's of half a tile's columns) or pointers; ``SUMS`` is a
    dtype; ``WIDE``: offsets need 64 bits."""
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
                left = _loaded(a, at, row, k, m, lda, TILE_K, TILE_M, A_BY_TMA, False, WIDE).T
            else:
                left = _loaded(a, row, at, m, k, lda, TILE_M, TILE_K, A_BY_TMA, True, WIDE)
            if TRANS_B:
                right = _loaded(b, col, at, n, k, ldb, TILE_N, TILE_K, B_BY_TMA, True, WIDE).T
            else:
                right = _loaded(b, at, col, k, n, ldb, TILE_K, TILE_N, B_BY_TMA, False, WIDE)
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
            i = row + tl.arange(0, TILE_M)
            j = col + tl.arange(0, TILE_N)
            mask = (i < m)[:, None] & (j < n)[None, :]
            tl.store(d + i[:, None].to(tl.int64) * ldd + j[None, :], sums.to(d.dtype.element_ty), mask=mask)
