"""Buffers and calls of a chain on a GPU, without one: which call reads what, and what is waited for when."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from tirgemm.gemm import Gemm
from tirgemm.tuning.verify import cuda_chain
from tirgemm.tuning.verify.chain import STEPS
from tirgemm.tuning.verify.cuda_chain import CudaChain
from tirgemm.tuning.verify.plan import GemmTest


class FakeMemory:
    """Addresses that nobody reads."""

    next = 1 << 20

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self.address = nbytes, FakeMemory.next
        FakeMemory.next += -(-nbytes // 256) * 256


class NotedGpu:
    """A GPU, and what fills and compares on it: ``log`` is what was asked for, in order."""

    ordinal = 0

    def __init__(self) -> None:
        self.log: list[Any] = []

    def synchronize(self) -> None:
        self.log.append("wait")

    def free_bytes(self) -> int:
        return 1 << 30

    def to_host(self, address: int, out: Any) -> None:
        self.log.append(("read", address))
        out[...] = np.float16(1.5).view(np.uint16)

    def forget(self) -> None:
        self.log.append("forget")

    def fill_normal(self, address: int, nbytes: int, dtype: str, seed: int, divisor: int = 1) -> None:
        self.log.append(("fill", address, nbytes, dtype, seed, divisor))

    def on_stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def differing(self, one: FakeMemory, other: FakeMemory) -> int:
        self.log.append(("compare", one.address, other.address))
        return 3


@pytest.mark.parametrize("text", ["16x24x100:f16:nt:beta:bias", "16x100x24:bf16:tn:batch=3:alpha"])
def test_each_call_reads_as_a_what_the_one_before_wrote(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_chain, "Memory", FakeMemory)
    gemm, gpu = Gemm.parse(text), NotedGpu()
    backend: Any = gpu
    noted: Any = gpu
    chain = CudaChain(noted, backend, GemmTest(gemm, 16, "normal", 7))
    assert gpu.log[0] == "forget"
    divisors = {name: how[5] for name, how in zip(gemm.inputs[1:], gpu.log[1:], strict=True)}
    assert divisors == {name: round(gemm.k**0.5) if name == "b" else 1 for name in gemm.inputs[1:]}
    calls: list[tuple[int, int]] = []

    def function(a: Any, *others: Any) -> None:
        tensors, scalars = others[: len(gemm.inputs)], others[len(gemm.inputs) :]
        assert len(scalars) == len(gemm.scalars)
        assert tuple(a.shape) == tuple(gemm.shape("a"))
        assert tuple(tensors[-1].shape) == tuple(gemm.shape("d"))
        calls.append((a.data_ptr(), tensors[-1].data_ptr()))
        gpu.log.append("call")

    starts: dict[bool, list[tuple[int, int]]] = {}
    for awaited in (True, False):
        gpu.log.clear()
        calls.clear()
        chain.run(function, awaited=awaited)
        first, second = calls[0]
        assert calls == [(first, second), (second, first)] * (STEPS // 2)
        fills = [each for each in gpu.log if each[0] == "fill"]
        assert {each[1] for each in fills[:2]} == {first, second}
        assert all(each[2] == 2 * 16 * 100 * gemm.batch for each in fills[:2]), "room for A and for D"
        asked = [each for each in gpu.log if each[0] != "fill"]
        assert asked == (["call", "wait"] * STEPS if awaited else ["call"] * STEPS) + ["wait"]
        assert len(fills) == (2 if awaited else 3), "work ahead of calls that are not awaited"
        starts[awaited] = [each[1:] for each in fills[:2]]
    assert {each[1] for pair in starts.values() for each in pair} == {2 * 16 * 100 * gemm.batch}
    one, other = starts[True], starts[False]
    assert [each[1:] for each in one] == [each[1:] for each in other], "filled alike"
    assert not {each[0] for each in one} & {each[0] for each in other}
    gpu.log.clear()
    assert chain.differing() == 6
    assert gpu.log == [("compare", mine[0], theirs[0]) for mine, theirs in zip(one, other, strict=True)]
    sample = chain.sample()
    assert gpu.log[-1] == ("read", one[0][0]), "which the last call wrote"
    assert sample.shape == (min(4096, 1600 * gemm.batch),)
