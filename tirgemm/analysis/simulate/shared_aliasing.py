"""Aliased shared buffers: which tensor's tile an access touches where one buffer holds several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from tirgemm.analysis.ir.expressions import DataDependent, evaluate
from tirgemm.analysis.ir.sites import Loop
from tirgemm.analysis.ir.unrolled_copies import Access

_WORD = 16
# Turns of a long loop that are looked at: more than a pipeline has stages.
_TURNS, _LONG = 8, 64
_MOST_POINTS = 1 << 18


def operands(accesses: Sequence[Access], launch: Mapping[str, int]) -> dict[Access, str]:
    """The tensor of every access of which the buffer holds several; those that stay in doubt are left out.

    ``launch``: how many values the warp, the lane and the block indices have.
    """
    pools = {a.first.buffer for a in accesses if a.first.space == "shared" and "+" in a.first.operand}
    mine = [a for a in accesses if a.first.space == "shared" and a.first.buffer in pools]
    words = {access: _words(access, launch) for access in mine}
    written = [
        (access.first, there)
        for access, there in words.items()
        if there is not None and not access.first.reads and access.first.operand and "+" not in access.first.operand
    ]
    by_access = {}
    for access, there in words.items():
        if "+" not in access.first.operand or there is None:
            continue
        writers = [w for w, at in written if w.buffer == access.first.buffer and np.intersect1d(there, at).size]
        # Places are used again: what was written last before an access is what it reads.
        before = [w for w in writers if w.order < access.first.order]
        if before:
            by_access[access] = max(before, key=lambda w: w.order).operand
        elif len({w.operand for w in writers}) == 1:
            by_access[access] = writers[0].operand
    return by_access


def _words(access: Access, launch: Mapping[str, int]) -> NDArray[np.int64] | None:
    """The 16-byte words that an access touches, of long loops in their first turns; None where that is not known."""
    extents = dict(launch)
    for loop in access.loops:
        if isinstance(loop, Loop) and loop.extent.kind == "const":
            turns = int(loop.extent.value)
            extents[loop.variable] = turns if turns <= _LONG else _TURNS
    words = []
    for site in access.sites:
        names = sorted(site.address.symbols)
        sizes = [extents.get(name, 0) for name in names]
        if not all(sizes) or prod(sizes) > _MOST_POINTS:
            return None
        axes = np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij", sparse=True)
        try:
            value = evaluate(site.address, dict(zip(names, axes, strict=True)))
        except DataDependent:
            return None
        words.append(np.unique(np.asarray(value, dtype=np.int64) // _WORD))
    return np.unique(np.concatenate(words))
