"""Kernel sets in PyTorch: one entry for a range of rows, one graph for every number of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import TRUST, packed_set
from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tests.torch.restored_table import restored_table
from tests.torch.watched_kernel import watch
from tirgemm.artifact import Kernel, load
from tirgemm.gemm import Gemm, Range

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

N, K, HIGHS = 23, 19, (1, 4, 16, 64)
WIDE = Gemm(Range(1, 64), N, K, "f32", "nt", bias=True)
SIZES = (2, 4, 5, 16, 17, 64, 3)


def kernel_set(gemm: Gemm) -> Kernel:
    return load(packed_set(gemm, HIGHS, regime="sustained", role="tuned"), trust=TRUST)


class SetSource(SampleSource):
    """Kernel sets in place of single kernels."""

    def kernel(self, gemm: Gemm, role: str) -> Kernel:
        del role
        self.made.append(kernel_set(gemm))
        return self.made[-1]


@pytest.fixture(autouse=True)
def table() -> Iterator[Any]:
    """A table that is as it was once the test is over."""
    with restored_table() as kept:
        yield kept


@pytest.fixture
def by_pytorch(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of the inputs whose ``F.linear`` PyTorch has computed."""
    seen: list[int] = []
    real = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", observed(real, lambda x, *_: seen.append(len(x))))
    return seen


def integers(*shape: int) -> Any:
    return torch.randint(-3, 4, shape).float()


def test_every_member_of_a_set_serves_its_rows(by_pytorch: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from tirgemm.torch import linear, matmul, register

    made = kernel_set(WIDE)
    register(made)
    weight, bias = integers(N, K), integers(N)
    for m in (1, *SIZES):
        x = integers(m, K)
        for _ in range(2):
            assert torch.equal(linear(x, weight, bias), x @ weight.t() + bias)
    assert torch.equal(linear(x.view(3, 1, K), weight, bias).view(3, N), x @ weight.t() + bias)
    assert by_pytorch == []
    linear(integers(65, K), weight, bias)
    assert by_pytorch == [65]
    register(kernel_set(WIDE.with_(bias=False)))
    monkeypatch.setattr(torch, "matmul", None)
    assert torch.equal(matmul(x, weight.t()), x @ weight.t())


def test_a_set_serves_pytorchs_own_products() -> None:
    from tirgemm.torch import register, routed

    register(kernel_set(WIDE.with_(bias=False)))
    weight = integers(N, K)
    with routed() as calls:
        for m in SIZES:
            x = integers(m, K)
            assert torch.equal(torch.mm(x, weight.t()).double(), x.double() @ weight.t().double())
    assert calls.counts["mm", "served"] == len(SIZES)


def test_accelerate_takes_one_set_for_all_rows(by_pytorch: list[int]) -> None:
    from tirgemm.torch import accelerate

    source, layer = SetSource(stored=[WIDE]), torch.nn.Linear(K, N)
    wanted = {m: layer(torch.ones(m, K)) for m in (1, *SIZES)}
    by_pytorch.clear()
    report = accelerate(layer, rows=Range(1, 64), source=source)
    assert str(report).endswith(f"replaced\n    1..64x{N}x{K}:f32:nt:bias: tuned")
    assert len(source.made) == 1
    assert all(torch.allclose(layer(torch.ones(m, K)), y, atol=1e-5) for m, y in wanted.items())
    assert by_pytorch == []


def test_one_graph_serves_every_member_and_kernels_that_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    from tirgemm.torch import Linear, register

    counter = CompileCounterWithBackend("aot_eager")
    layer = Linear(K, N)
    layer.weight.copy_(integers(N, K))
    layer.bias.copy_(integers(N))
    ran: list[int] = []
    compiled = torch.compile(lambda x: layer(x) + 1, dynamic=True, fullgraph=True, backend=counter)
    for kernel in (None, kernel_set(WIDE), kernel_set(WIDE)):
        if kernel is not None:
            register(watch(kernel, lambda x: ran.append(len(x)), monkeypatch))
        for m in SIZES:
            x = integers(m, K)
            assert torch.equal(compiled(x), x @ layer.weight.t() + layer.bias + 1)
    assert counter.frame_count == 1, "one compilation for all rows and all kernels"
    assert ran == [*SIZES, *SIZES]
    compiled(integers(1, K))
    assert counter.frame_count == 2, "PyTorch itself compiles anew for one row"
