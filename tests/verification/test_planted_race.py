"""The race that is planted for racecheck, in a kernel of each family. Needs TVM; no GPU."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace

import pytest

from tirgemm.families import family_named
from tirgemm.hardware import WARP, named_device
from verification.alterations import RACE, altered
from verification.altered import lowered
from verification.covering import small_cases
from verification.sanitize import plantable

H200 = named_device("sm_90a")
PLANTED = re.compile(r"extern __shared__ .*\[\]; \(\(volatile int\*\)\w+\)\[(?P<word>[^\]]+)\] = (?P<value>[^;]+);")
KERNEL = re.compile(r'^extern "C" __global__ .*?(\w+)\([^()]*\) \{$', re.MULTILINE)


@pytest.mark.parametrize("family", ["simt", "wmma", "mma", "wgmma"])
def test_two_warps_write_different_values_to_one_word(family: str) -> None:
    case = plantable(small_cases(family_named(family), H200, 12, plain=True))
    launch, source = lowered(case.gemm, case.config, H200)
    text = altered(source, RACE)
    (planted,) = PLANTED.finditer(text)
    symbol = [match[1] for match in KERNEL.finditer(text, 0, planted.start())][-1]
    x, y, z = next(tuple(map(int, kernel.block)) for kernel in launch.kernels if kernel.symbol == symbol)
    writes: dict[int, dict[int, int]] = {}
    for number, (k, j, i) in enumerate(product(range(z), range(y), range(x))):
        names = {"threadIdx": SimpleNamespace(x=i, y=j, z=k), "blockDim": SimpleNamespace(x=x, y=y, z=z)}
        word, value = (int(eval(planted[part].replace("(int)", ""), names)) for part in ("word", "value"))
        writes.setdefault(word, {})[number // WARP] = value
    assert any(len(set(of_warps.values())) > 1 for of_warps in writes.values()), (case.key, (x, y, z))
