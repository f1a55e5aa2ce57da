"""Sizes of m at which the kernels of a set are searched and compared."""

from __future__ import annotations

from tirgemm.gemm import Range

# Rows between two sizes at which a range is cut: the fewest, the most up to 4096, and the most up to 8192.
_FINEST, _MIDDLE, _COARSEST = 16, 64, 128


def searched_sizes(m: Range) -> tuple[int, ...]:
    """Both ends of a range and, between them, the powers of two and one and a half times those, ascending."""
    powers = [1 << exponent for exponent in range(m.high.bit_length())]
    between = {*powers, *(power * 3 // 2 for power in powers[1:])}
    return tuple(sorted({m.low, m.high, *(size for size in between if m.low < size < m.high)}))


def compared_sizes(m: Range) -> tuple[int, ...]:
    """The searched sizes and, from 64 on, those half way between them, where the last wave of tiles is another one:
    ascending."""
    powers = [1 << exponent for exponent in range(6, m.high.bit_length())]
    between = {power * quarters // 4 for power in powers for quarters in (5, 7)}
    return tuple(sorted({*searched_sizes(m), *(size for size in between if m.low < size < m.high)}))


def cut_sizes(m: Range) -> tuple[int, ...]:
    """The compared sizes and, from 64 on, more between them, an eighth to a thirty-second of their size apart, at
    which a range is cut: ascending.

    Tiles are mostly so many rows or a multiple of them, so that just here a wave of tiles is full.
    """
    between: set[int] = set()
    for power in (1 << exponent for exponent in range(6, m.high.bit_length())):
        most = _MIDDLE if power < 4096 else _COARSEST
        step = max(min(max(power // 16, _FINEST), most), power // 32)
        between.update(range(power, 2 * power, step))
    return tuple(sorted({*compared_sizes(m), *(size for size in between if m.low < size < m.high)}))


def coarse_first(sizes: tuple[int, ...]) -> list[int]:
    """The same, the ends and the powers of two before those between them: what is searched where time is short."""
    ends = {sizes[0], sizes[-1]}
    return sorted(sizes, key=lambda size: (size not in ends, size & (size - 1) != 0, size))
