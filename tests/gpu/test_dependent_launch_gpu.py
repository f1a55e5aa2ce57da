"""Chains of dependent launches on a real GPU: each kernel reads what the one before writes, and overwrites what that
reads, and the bits are those of ordinary launches.

Kernels of every family, in every way that it loads, splits and stores; as they are, and with blocks that are late. One
that does not wait must fail, here and in the chain test of certificates. A model is accelerated with kernels that were
rebuilt and certified so.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the chains are of PyTorch tensors")

from tests.gpu.launcher_samples import GPUS, by_hand, loaded  # noqa: E402 (it imports torch)
from tests.torch.restored_table import restored_table  # noqa: E402
from tests.verification.covering_cases import chained_cases  # noqa: E402
from tirgemm.artifact import Trust, load  # noqa: E402
from tirgemm.families import family_named  # noqa: E402
from tirgemm.gemm import DTYPE_NAMES, Gemm, Range  # noqa: E402
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Pointer  # noqa: E402
from tirgemm.tuning.build.binary import Binary  # noqa: E402
from tirgemm.tuning.verify.chain import chain_report  # noqa: E402
from tirgemm.tuning.workbench import Workbench  # noqa: E402
from verification.alterations import LATE  # noqa: E402
from verification.altered import DEPENDENT, altered_bench, with_alteration  # noqa: E402
from verification.cases import Case  # noqa: E402

HOPPER = [device for device in GPUS if int(device.arch[3:].rstrip("a")) >= 90]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not HOPPER, reason="this machine has no GPU of sm_90 or newer"),
]

PLAIN = ""
ALTERATIONS = (PLAIN, DEPENDENT, f"{DEPENDENT}+{LATE}")
STEPS, CHAINS = 25, 40
CASES = (
    [case for name in ("simt", "mma", "wmma", "wgmma") for case in chained_cases(family_named(name), HOPPER[0])]
    if HOPPER
    else []
)
# It lets the next kernel start, and writes much later; it waits for nothing.
HASTY = """
extern "C" __global__ void hasty(const unsigned short* a, const unsigned short* b, unsigned short* d) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  float sum = 0;
  for (int k = 0; k < 64; ++k) sum += get(a + blockIdx.x * 64 + k) * get(b + threadIdx.x * 64 + k);
  long long start = clock64();
  while (clock64() - start < 100000) {}
  put(d + blockIdx.x * 64 + threadIdx.x, sum);
}
"""

Builds = dict[tuple[Case, str], "Future[Binary]"]


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    with altered_bench(HOPPER[0], processes=16) as bench:
        yield bench


@pytest.fixture(scope="module")
def builds(bench: Workbench) -> Builds:
    """Every case in every alteration, all begun at once."""
    return {
        (case, alteration): bench.build(case.gemm, with_alteration(case.config, alteration))
        for case in CASES
        for alteration in ALTERATIONS
    }


@pytest.fixture(autouse=True)
def _stream() -> Iterator[None]:
    """All of a test on one stream, which is not the legacy default one."""
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
        torch.cuda.synchronize()


def operands(gemm: Gemm) -> tuple[Any, Any]:
    """Random rows, and a square B that keeps their size."""
    how: dict[str, Any] = {"device": HOPPER[0].name, "generator": torch.Generator(HOPPER[0].name).manual_seed(5)}
    dtype = getattr(torch, DTYPE_NAMES[gemm.dtype])
    x = torch.randn(gemm.m_max, gemm.k, **how).to(dtype)
    return x, (torch.randn(gemm.n, gemm.k, **how) / gemm.k**0.5).to(dtype)


def chained(kernel: Any, x: Any, b: Any) -> Any:
    """x after so many products with B, each of which reads what the last wrote, in two buffers by turns."""
    buffers = [x.clone(), torch.zeros_like(x)]
    for step in range(STEPS):
        kernel.raw(buffers[step % 2], b, buffers[1 - step % 2])
    return buffers[STEPS % 2]


def differing(kernel: Any, x: Any, b: Any, wanted: Any) -> int:
    """How many of the chains give other bits."""
    wrong = torch.zeros((), dtype=torch.int64, device=x.device)
    for _ in range(CHAINS):
        wrong += (chained(kernel, x, b) != wanted).any()
    return int(wrong)


@pytest.mark.parametrize("case", CASES, ids=[f"{case.config.family} {case.key}" for case in CASES])
def test_a_chain_of_dependent_launches_gives_the_same_bits(bench: Workbench, builds: Builds, case: Case) -> None:
    x, b = operands(case.gemm)
    wanted: Any = None
    for alteration in ALTERATIONS:
        config = with_alteration(case.config, alteration)
        package = bench.package(case.gemm, config, builds[case, alteration].result())
        kernel = load(package, trust=Trust.of(bench.signer.public))
        if alteration == PLAIN:
            wanted = chained(kernel, x, b)
            assert wanted.isfinite().all()
            assert wanted.unique().numel() > 100
        else:
            assert all(DEPENDENT_LAUNCH in each.attributes for each in kernel.manifest.launch.kernels)
        assert differing(kernel, x, b, wanted) == 0, f"{case.config} ({alteration or 'as it is'})"
        torch.cuda.synchronize()
        kernel.close()


def hasty_kernels(gemm: Gemm) -> list[Any]:
    """The kernel that waits for nothing, launched as ever and dependently."""
    pointers = tuple(Pointer(name) for name in "abd")
    launches = [
        KernelLaunch("hasty", pointers, (64, 1, 1), (64, 1, 1), attributes=attributes)
        for attributes in ((), (DEPENDENT_LAUNCH,))
    ]
    return [loaded(by_hand(str(gemm), HASTY, launch)) for launch in launches]


def test_a_kernel_that_does_not_wait_is_wrong() -> None:
    gemm = Gemm.parse("64x64x64:f16:nt")
    x, b = operands(gemm)
    wanted, early = hasty_kernels(gemm)
    right = chained(wanted, x, b)
    assert differing(wanted, x, b, right) == 0
    assert differing(early, x, b, right) > 0


def test_the_chain_test_of_certificates_tells_a_kernel_that_does_not_wait() -> None:
    from tirgemm.tuning.driver.cuda import Gpu
    from tirgemm.tuning.verify.cuda import CudaBackend
    from tirgemm.tuning.verify.cuda_chain import CudaChain

    gemm, gpu = Gemm.parse("64x64x64:f16:nt"), Gpu(HOPPER[0])
    make_chain = partial(CudaChain, gpu, CudaBackend(gpu))
    ordinary, early = hasty_kernels(gemm)
    report = chain_report(make_chain, gemm, ordinary.raw, seed=3)
    assert report["passed"], report
    report = chain_report(make_chain, gemm, early.raw, seed=3)
    assert not report["passed"]
    assert "chains have other bits than calls that wait for one another" in report["message"]


@pytest.mark.timeout(300)  # a dozen kernels are built and certified
def test_a_model_is_accelerated_with_certified_kernels_of_the_same_bits(tmp_path: Path) -> None:
    import tirgemm
    from tirgemm.torch import accelerate
    from tirgemm.torch.alternation import captured
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE, TABLE

    nn, place = torch.nn, HOPPER[0].name
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(520, 264), nn.ReLU(), nn.Linear(264, 520, bias=False)).to(place, torch.float16)
    dependent = copy.deepcopy(plain)
    options: dict[str, Any] = {"rows": [16, Range(17, 300)], "source": tirgemm.LocalKernels(tmp_path)}
    options |= {"policy": "default", "measured": False, "wait": True}
    with restored_table():
        accelerate(plain, **options)
        report = accelerate(dependent, **options, dependent_launch=True)
        assert report.failures == {}
        assert str(report).startswith("2 of 2 linears replaced, with dependent launches; 4 problems")
        for gemm in report.gemms:
            ours, theirs = (table.find(gemm, HOPPER[0]) for table in (DEPENDENT_TABLE, TABLE))
            assert ours is not None
            assert theirs is not None
            assert [each.config for each in ours.manifest.kernels] == [each.config for each in theirs.manifest.kernels]
            assert ours.manifest.dependent_launch
            assert not theirs.manifest.dependent_launch
            for member in ours.manifest.kernels:
                assert member.certificate is not None
                assert [test["name"] for test in member.certificate["tests"]][-1] == "chain"
            assert ours.manifest.certificate_fault == ""
        for rows in (16, 17, 300):
            x = torch.randn(rows, 520, device=place).half()
            wanted = plain(x)
            assert torch.equal(dependent(x), wanted)
            graph, output = captured(partial(dependent, x))
            for _ in range(CHAINS):
                output.zero_()
                graph.replay()
                assert torch.equal(output, wanted)
        report.undo()
        again = accelerate(dependent, **options, dependent_launch=True, dry_run=True)
        assert [words for linear in again.linears for _, words in linear.problems] == ["default"] * 4
