"""``routed`` on a real GPU: PyTorch's own samples of its products by default kernels, beside results in fp64."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the samples are PyTorch's")

from tests.gpu.launcher_samples import GPUS  # noqa: E402 (it imports torch)
from tests.torch.built_kernels import BuiltKernels  # noqa: E402
from tests.torch.operator_samples import check_samples, prepare_missing  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def source() -> Iterator[BuiltKernels]:
    from tirgemm.torch.kernel_table import TABLE

    with BuiltKernels(min(16, os.cpu_count() or 1), "cuda:0") as built:
        yield built
        for kernel in built.kernels:
            TABLE.remove(kernel)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [("float16", 2e-3, 2e-2), ("bfloat16", 2e-2, 2e-1)])
def test_every_sample_of_pytorch_is_right(source: BuiltKernels, dtype: str, rtol: float, atol: float) -> None:
    kind: Any = getattr(torch, dtype)
    assert prepare_missing(source, kind, "cuda") is None
    total = check_samples(kind, "cuda", rtol=rtol, atol=atol)
    assert total["samples"] > 100
    assert total["served"] > 300, total
