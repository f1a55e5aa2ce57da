"""B packed once and given to calls: what the launcher packs, what it takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import kernel, operands
from tests.helpers.packing_kernel import packing_kernel
from tirgemm.artifact import Kernel
from tirgemm.errors import CallError, CallTypeError
from tirgemm.launch import KernelLaunch, Pointer, Size, Workspace

TEXT = "1..9x5x7:f32:nt"
NBYTES = 4 * 5 * 7


def memory(nbytes: int = NBYTES, offset: int = 0) -> Any:
    """So many bytes that begin at a multiple of 64, or so many bytes behind one."""
    whole = np.zeros(nbytes + 128, np.uint8)
    start = -whole.__array_interface__["data"][0] % 64 + offset
    return whole[start : start + nbytes]


@pytest.fixture(scope="module")
def packs() -> Kernel:
    return packing_kernel(TEXT)


def test_a_packed_operand_serves_every_call_and_is_only_read(packs: Kernel) -> None:
    assert packs.functions.packed_bytes(0) == NBYTES
    data = memory()
    arrays, _ = operands(packs.gemm, 9)
    packs.functions.pack(arrays["b"], data, 0)
    before = data.copy()
    for m in (9, 1, 4):
        arrays_m, product = operands(packs.gemm, m)
        out = np.full((m, 5), np.nan, np.float32)
        packs.functions.call_packed(arrays_m["a"], arrays["b"], out, data)
        assert np.array_equal(out, arrays_m["a"] @ arrays["b"].T)
        assert np.array_equal(packs(arrays_m["a"], arrays_m["b"]), product), "a call without it is as before"
    assert np.array_equal(data, before)


def test_a_call_reads_the_packed_operand_and_not_b(packs: Kernel) -> None:
    arrays, _ = operands(packs.gemm, 4)
    data, out = memory(), np.empty((4, 5), np.float32)
    packs.functions.pack(arrays["b"], data, 0)
    packs.functions.call_packed(arrays["a"], np.zeros_like(arrays["b"]), out, data)
    assert np.array_equal(out, arrays["a"] @ arrays["b"].T)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (memory(NBYTES - 1), "must be a dense array of 140 unsigned bytes"),
        (memory(NBYTES + 1), "must be a dense array of 140 unsigned bytes"),
        (memory(2 * NBYTES)[::2], "must be a dense array of 140 unsigned bytes"),
        (memory().view(np.int8), "must be a dense array of 140 unsigned bytes"),
        (memory().reshape(2, -1), "must be a dense array of 140 unsigned bytes"),
        (memory(offset=32), "must be aligned to 64 bytes"),
    ],
    ids=["short", "long", "strided", "signed", "matrix", "unaligned"],
)
def test_memory_that_does_not_hold_it_is_refused(packs: Kernel, data: Any, says: str) -> None:
    arrays, _ = operands(packs.gemm, 4)
    with pytest.raises(CallError, match=says):
        packs.functions.pack(arrays["b"], data, 0)
    with pytest.raises(CallError, match=says):
        packs.functions.call_packed(arrays["a"], arrays["b"], np.empty((4, 5), np.float32), data)


def test_wrong_arguments_are_refused_by_name(packs: Kernel) -> None:
    arrays, _ = operands(packs.gemm, 4)
    out = np.empty((4, 5), np.float32)
    pack: Any = packs.functions.pack
    with pytest.raises(CallError, match=r"b has shape \(7, 5\); it must be \(5, 7\)"):
        packs.functions.pack(arrays["b"].T.copy(), memory(), 0)
    with pytest.raises(CallTypeError, match="b must be a tensor"):
        packs.functions.pack(3, memory(), 0)
    with pytest.raises(CallTypeError, match="pack takes 3 arguments"):
        pack(arrays["b"])
    with pytest.raises(CallTypeError, match="the packed operand must be a tensor"):
        packs.functions.call_packed(arrays["a"], arrays["b"], out, 1.0)
    with pytest.raises(CallTypeError, match="this kernel takes 3 arguments"):
        packs.functions.call_packed(arrays["a"], arrays["b"], memory())
    with pytest.raises(CallTypeError, match="the packed operand is missing"):
        packs.functions.call_packed()


PACK = KernelLaunch("pack_b", (Pointer("b"), Pointer("packed_b")), (7, 1, 1))
MULTIPLY = KernelLaunch("multiply", (Pointer("a"), Pointer("packed_b"), Pointer("d"), Size(4)), (4, 1, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"kernels": (KernelLaunch("multiply", MULTIPLY.params, (4, 1, 1)),)},
        {"kernels": (KernelLaunch("multiply", PACK.params, (7, 1, 1)), MULTIPLY)},
        {"kernels": (KernelLaunch("pack_b", (*PACK.params, Pointer("a")), (7, 1, 1)), MULTIPLY)},
        {"kernels": (MULTIPLY, PACK)},
        {"workspaces": (Workspace("packed_b", NBYTES, "zero"),)},
    ],
    ids=["no pack", "another name", "of A too", "after its use", "begins as zeros"],
)
def test_only_what_is_written_from_b_alone_is_kept(changes: dict[str, Any]) -> None:
    other = packing_kernel("4x5x7:f32:nt", **changes)
    assert other.functions.packed_bytes(0) == 0
    with pytest.raises(CallError, match="this kernel does not pack B by itself"):
        other.functions.pack(np.zeros((5, 7), np.float32), memory(), 0)
    assert kernel("4x5x7:f32:nt").functions.packed_bytes(0) == 0


def test_the_x86_family_keeps_its_names() -> None:
    from tirgemm.config import Config
    from tirgemm.detect import device
    from tirgemm.families import family_named
    from tirgemm.gemm import Gemm

    family, cpu, gemm = family_named("x86"), device("cpu"), Gemm.parse("1..9x37x41:f32:nt")
    if family.supports(gemm, cpu) is not None:
        pytest.skip("this CPU is not one that x86 writes for")
    config: Config = family.default(gemm, cpu, "sustained")
    launch = family.instantiate(gemm, config, cpu).launch
    pack = next(each for each in launch.kernels if each.symbol == "pack_b")
    assert pack.params == (Pointer("b"), Pointer("packed_b"))
    assert isinstance(pack.grid[0], int)
