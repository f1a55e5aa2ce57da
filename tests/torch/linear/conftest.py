"""Fixtures of the tests of ``linear``: registered kernels, and a count of what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers.artifact_samples import kernel
from tests.torch.linear.integer_operands import K, N
from tirgemm.gemm import Gemm


@pytest.fixture(scope="module", autouse=True)
def single_thread() -> None:
    """The tensors are tiny: more threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    import torch

    with torch.no_grad():
        yield


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[Any]:
    """The kernels of this module, which no other test meets."""
    from tirgemm.torch import register
    from tirgemm.torch.kernel_table import TABLE

    texts = [
        f"1..64x{N}x{K}:f32:nt",
        f"1..64x{N}x{K}:f32:nt:bias",
        f"5x{N}x{K}:f32:nt:bias",
        f"1..64x{N}x{K}:f16:nt",
        f"1..64x{N}x{K}:f32:nn",
        f"7x{N}x{K}:f32:tn",
        f"7x{N}x{K}:f32:nt:batch=3",
        f"7x{N}x{K}:f32:nn:lda=40:ldb=37",
    ]
    kernels = [kernel(Gemm.parse(text)) for text in texts]
    for each in kernels:
        register(each)
    yield TABLE
    for each in kernels:
        TABLE.remove(each)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many calls of ``F.linear`` and ``torch.matmul`` PyTorch has computed so far."""
    import torch

    calls: list[str] = []
    for owner, name in ((torch.nn.functional, "linear"), (torch, "matmul")):
        real = getattr(owner, name)

        def spy(*args: Any, _real: Any = real, _name: str = name, **more: Any) -> Any:
            calls.append(_name)
            return _real(*args, **more)

        monkeypatch.setattr(owner, name, spy)
    return lambda: len(calls)
