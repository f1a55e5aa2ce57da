"""The copy to aligned rows on a Hopper GPU: its bits, and the share of memory's bandwidth that it reaches.

The copying kernel is packed alone, D in the place of the copy: n is k rounded up as the rows of a copy are, so that
their rows are alike.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.helpers.repack_alone import repack_alone
from tirgemm.artifact import Contents, Kernel, Signer, Trust, load, pack
from tirgemm.config import Config
from tirgemm.detect import devices
from tirgemm.gemm import Gemm
from tirgemm.launch import Pointer
from tirgemm.timings import Timings

GPUS = [device for device in devices() if device.kind == "cuda" and device.arch == "sm_90a"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no Hopper GPU"),
]

SIGNER = Signer.generate()
# Pairs of operand and copy, together more than the L2.
_PAIRS = 8
_ROUNDS = 10
_LEAST_BYTES_PER_SECOND = 2.5e12


@cache
def copying(text: str) -> Kernel:
    """A kernel that copies A to D."""
    from tirgemm.families.wgmma.planning.repacking import repacked
    from tirgemm.tuning.build import cuda
    from tirgemm.tuning.driver.nvrtc import compile_source

    gemm, units = Gemm.parse(text), GPUS[0].units
    item = repacked(gemm, "a")
    assert item is not None
    # D is the copy: no workspace.
    program = repack_alone(gemm, (item,), units, ())
    host, source = cuda.lower(program, GPUS[0].arch)
    (kernel,) = cuda.checked_launch(program, host).kernels
    params = tuple(Pointer("d") if p == Pointer(item.name) else p for p in kernel.params)
    launch = replace(program.launch, kernels=(replace(kernel, params=params),))
    cubin = compile_source(source, GPUS[0].arch)
    data = pack(
        Contents(
            gemm=gemm,
            config=Config("hand", ()),
            device=GPUS[0],
            launch=launch,
            binary=cubin.data,
            binary_format="cubin",
            sources={},
            flags=cubin.flags,
            certificate=None,
            timings=Timings(),
        ),
        SIGNER,
    )
    return load(data, trust=Trust.of(SIGNER.public))


@pytest.mark.parametrize(("m", "k"), [(1, 1), (3, 7), (33, 129), (1000, 1002), (513, 1004), (4096, 4097)])
def test_copy_has_every_bit(m: int, k: int) -> None:
    import torch

    unit = 64 if k >= 64 else 8
    n = -(-k // unit) * unit
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.float16) for rows in (m, n))
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    copying(f"{m}x{n}x{k}:f16:nt")(a=a, b=b, out=out)
    assert torch.equal(out[:, :k], a)


@pytest.mark.parametrize("offset", range(8))
def test_copy_has_every_bit_wherever_its_base_lies(offset: int) -> None:
    import torch

    m, n, k = 65, 320, 301
    memory = torch.randn(m * k + 8, device="cuda", dtype=torch.float16)
    a = memory[offset : offset + m * k].view(m, k)
    b = torch.randn(n, k, device="cuda", dtype=torch.float16)
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    copying(f"{m}x{n}x{k}:f16:nt:align=2")(a=a, b=b, out=out)
    assert torch.equal(out[:, :k], a)


def test_copy_runs_at_memorys_speed() -> None:
    import torch

    m, n, k = 4096, 4104, 4097
    kernel = copying(f"{m}x{n}x{k}:f16:nt")
    b = torch.randn(n, k, device="cuda", dtype=torch.float16)
    pairs = [
        (torch.randn(m, k, device="cuda", dtype=torch.float16), torch.empty(m, n, device="cuda", dtype=torch.float16))
        for _ in range(_PAIRS)
    ]
    kernel(a=pairs[0][0], b=b, out=pairs[0][1])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for a, out in pairs:
            kernel(a=a, b=b, out=out)
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_ROUNDS):
        graph.replay()
    end.record()
    end.synchronize()
    seconds = start.elapsed_time(end) / 1e3 / _ROUNDS / _PAIRS
    rate = 2 * m * (n + k) / seconds
    print(f"{seconds * 1e6:.2f} us, {rate / 1e12:.3f} TB/s")
    assert rate >= _LEAST_BYTES_PER_SECOND
