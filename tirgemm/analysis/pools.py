"""Which tensor an access of a shared buffer is about that holds tiles of several: by the words that each writes there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from tirgemm.analysis.expressions import DataDependent, evaluate
from tirgemm.analysis.groups import Access
from tirgemm.analysis.sites import Loop

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
    written: dict[tuple[str, str], list[NDArray[np.int64]]] = {}
    for access, there in words.items():
        site = access.first
        if there is not None and not site.reads and site.operand and "+" not in site.operand:
            written.setdefault((site.buffer, site.operand), []).append(there)
    found = {}
    for access, there in words.items():
        if "+" not in access.first.operand or there is None:
            continue
        owners = {
            operand
            for (buffer, operand), others in written.items()
            if buffer == access.first.buffer and any(np.intersect1d(there, other).size for other in others)
        }
        if len(owners) == 1:
            found[access] = owners.pop()
    return found


def _words(access: Access, launch: Mapping[str, int]) -> NDArray[np.int64] | None:
    """The 16-byte words that an access touches, of long loops in their first turns; None where that is not known."""
    extents = dict(launch)
    for loop in access.loops:
        if isinstance(loop, Loop) and loop.extent.kind == "const":
            turns = int(loop.extent.value)
            extents[loop.variable] = turns if turns <= _LONG else _TURNS
    found = []
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
        found.append(np.unique(np.asarray(value, dtype=np.int64) // _WORD))
    return np.unique(np.concatenate(found))
