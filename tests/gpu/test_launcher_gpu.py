"""The launcher on a real GPU: PyTorch tensors, streams, threads, graphs, workspaces, tensor maps, failures, overhead.

What the launcher asks of the driver, call by call, is tests/artifact/test_launcher_cuda.py's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tirgemm.artifact import export
from tirgemm.errors import (
    CallError,
)
from tirgemm.expr import M, ceildiv
from tirgemm.launch import (
    KernelLaunch,
    Pointer,
    Scalar,
    Size,
    TensorMap,
    Workspace,
)

torch = pytest.importorskip("torch", reason="the launcher's GPU tests call with PyTorch tensors")

from tests.gpu.launcher_samples import (  # noqa: E402 (it imports torch)
    GPUS,
    PLAIN,
    TRUST,
    artifact,
    by_hand,
    check,
    expected,
    loaded,
    operands,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]


@pytest.mark.parametrize(
    "text",
    [PLAIN, "129x67x35:bf16:nn:align=2", "65x33x17:f32:tt:align=4", "64x128x64:f16:tn", "1x1x1:f16:nt:align=2"],
)
def test_pytorch_tensors_give_the_exact_product(text: str) -> None:
    check(loaded(artifact(text)))


def test_scalars_bias_and_an_m_of_a_range_reach_the_kernel() -> None:
    kernel = loaded(artifact("1..130x67x35:f16:nn:alpha:beta:bias:align=2"))
    for m in (1, 77, 130):
        tensors = operands(kernel.gemm, m, seed=m)
        served = kernel(**tensors, alpha=0.5, beta=-2.0)
        assert torch.equal(served.double(), expected(kernel.gemm, tensors, 0.5, -2.0))


def test_the_kernel_runs_on_pytorchs_current_stream() -> None:
    kernel = loaded(artifact())
    tensors, stream = operands(kernel.gemm), torch.cuda.Stream()
    late, out = torch.zeros_like(tensors["a"]), torch.empty(257, 129, dtype=torch.float16, device="cuda")
    kernel(late, tensors["b"], out=out)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second: a kernel on any other stream would read zeros
        late.copy_(tensors["a"])
        kernel(late, tensors["b"], out=out)
    assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    assert torch.equal(out.double(), expected(kernel.gemm, tensors))


def run_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_eight_threads_each_on_its_own_stream() -> None:
    kernel = loaded(artifact())  # not called before: the first calls race

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(20):
                check(kernel, seed=100 * index + turn)

    run_threads(8, work)


def test_a_fresh_thread_without_a_context_can_make_the_first_call() -> None:
    kernel = loaded(artifact())
    tensors, out = operands(kernel.gemm), torch.zeros(257, 129, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    run_threads(1, lambda _: kernel.raw(tensors["a"], tensors["b"], out))
    torch.cuda.synchronize()
    assert torch.equal(out.double(), expected(kernel.gemm, tensors))


@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_captures_the_call_even_the_first_and_replays_with_new_inputs(warm: bool) -> None:
    kernel = loaded(artifact())
    tensors, out = operands(kernel.gemm), torch.zeros(257, 129, dtype=torch.float16, device="cuda")
    if warm:
        kernel(**tensors, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(**tensors, out=out)
    for seed in (1, 2):
        fresh = operands(kernel.gemm, seed=seed)
        for name, tensor in tensors.items():
            tensor.copy_(fresh[name])
        graph.replay()
        assert torch.equal(out.double(), expected(kernel.gemm, fresh))


def test_a_captured_output_is_made_in_the_graphs_pool() -> None:
    kernel = loaded(artifact())
    tensors = operands(kernel.gemm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(**tensors)
    graph.replay()
    assert torch.equal(out.double(), expected(kernel.gemm, tensors))


COUNTING = r"""
#define K 24
#define N 16
extern "C" __global__ void add(float* sums, const unsigned short* a, int m) {
  for (int i = threadIdx.x; i < m * K; i += blockDim.x) atomicAdd(&sums[i % 8], get(a + i));
}
extern "C" __global__ void show(const float* sums, unsigned short* d, float alpha, int m) {
  for (int i = threadIdx.x; i < m * N; i += blockDim.x) put(d + i, alpha * sums[i % 8]);
}
"""


@cache
def counting() -> bytes:
    kernels = (
        KernelLaunch("add", (Pointer("sums"), Pointer("a"), Size(M)), (1, 1, 1), (256, 1, 1)),
        KernelLaunch("show", (Pointer("sums"), Pointer("d"), Scalar("alpha"), Size(M)), (1, 1, 1), (256, 1, 1)),
    )
    spaces = (Workspace("unused", M * 1000), Workspace("sums", 32, "zero"))
    return by_hand("1..64x16x24:f16:nt:alpha", COUNTING, *kernels, workspaces=spaces)


def summed(a: Any) -> Any:
    columns = torch.arange(16, device=a.device) % 8
    return (2.0 * a.double().reshape(-1, 8).sum(0))[columns].expand(a.shape[0], 16)


def test_kernels_run_in_order_over_a_workspace_that_is_zero_every_time() -> None:
    kernel = loaded(counting())
    for m in (1, 64, 33):
        tensors = operands(kernel.gemm, m, seed=m)
        for _ in range(3):
            assert torch.equal(kernel(**tensors, alpha=2.0).double(), summed(tensors["a"]))


def test_workspaces_are_captured_and_leak_nothing() -> None:
    kernel = loaded(counting())
    tensors, out = operands(kernel.gemm), torch.zeros(64, 16, dtype=torch.float16, device="cuda")
    kernel(**tensors, alpha=2.0, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        kernel(**tensors, alpha=2.0, out=out)
    assert torch.cuda.memory_allocated() == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(**tensors, alpha=2.0, out=out)
    for seed in (1, 2, 3):
        tensors["a"].copy_(operands(kernel.gemm, seed=seed)["a"])
        graph.replay()
        assert torch.equal(out.double(), summed(tensors["a"]))


def test_without_a_framework_the_drivers_pool_gives_workspaces() -> None:
    import tvm_ffi

    kernel = loaded(counting())
    tensors, out = operands(kernel.gemm), torch.zeros(64, 16, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    a, b, d = (tvm_ffi.from_dlpack(tensor) for tensor in (tensors["a"], tensors["b"], out))
    stream = torch.cuda.Stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream.cuda_stream):
        for _ in range(3):
            kernel.raw(a, b, d, 2.0)
    stream.synchronize()
    assert torch.equal(out.double(), summed(tensors["a"]))


TILES = r"""
struct alignas(64) Map { unsigned long long opaque[16]; };
extern "C" __global__ void tiles(const __grid_constant__ Map map, unsigned short* d, int m) {
  __shared__ alignas(128) unsigned short tile[32 * 64];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned bar = (unsigned)__cvta_generic_to_shared(&barrier), to = (unsigned)__cvta_generic_to_shared(tile);
  int row = blockIdx.x * 32;
  unsigned clusters;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(clusters));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 4096;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(to), "l"(&map), "r"(0), "r"(row), "r"(bar) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar) : "memory");
  for (int i = threadIdx.x; i < 32 * 64; i += blockDim.x)
    if (row + i / 64 < m) put(d + (row + i / 64) * 64 + i % 64, get(tile + i) * clusters);
}
"""


def test_tensor_maps_clusters_and_dependent_launches_work_for_every_m() -> None:
    if int(GPUS[0].arch[3:].rstrip("a")) < 90:
        pytest.skip("tensor maps and clusters need sm_90 or later")
    over_a = TensorMap("a", "f16", (64, M), (128,), (64, 32), (1, 1))
    grid = (ceildiv(M, 64) * 2, 1, 1)
    kernel = loaded(
        by_hand(
            "1..200x64x64:f16:nt",
            TILES,
            KernelLaunch(
                "tiles",
                (over_a, Pointer("d"), Size(M)),
                grid,
                (128, 1, 1),
                (2, 1, 1),
                attributes=(("programmatic_dependent_launch", 1),),
            ),
        )
    )
    for m in (1, 32, 63, 199):
        tensors = operands(kernel.gemm, m, seed=m)
        assert torch.equal(kernel(**tensors), 2 * tensors["a"])


def test_close_frees_the_kernel_and_the_next_call_loads_it_again() -> None:
    kernel = loaded(artifact())
    check(kernel)
    torch.cuda.synchronize()
    kernel.close()
    check(kernel)


def test_a_second_gpu_runs_the_same_kernel_whichever_is_current() -> None:
    if len(GPUS) < 2:
        pytest.skip("this machine has one GPU")
    kernel = loaded(artifact())
    for current in (0, 1):
        with torch.cuda.device(current):
            for device in ("cuda:0", "cuda:1"):
                check(kernel, device=device)
    tensors = operands(kernel.gemm)
    with pytest.raises(CallError, match="b is on cuda:1, but a is on cuda:0"):
        kernel(tensors["a"], tensors["b"].to("cuda:1"))


EXPORTED = """
import sys, torch, tvm_ffi
main = tvm_ffi.load_module(sys.argv[1])["main"]
a, b = (torch.randint(-2, 3, shape, device="cuda").half() for shape in ((257, 65), (129, 65)))
out = torch.zeros(257, 129, dtype=torch.float16, device="cuda")
main(a, b, out)
assert torch.equal(out.double(), a.double() @ b.double().T)
assert "tirgemm" not in sys.modules
"""


def test_the_single_file_export_runs_without_this_package(tmp_path: Path) -> None:
    path = export(artifact(), tmp_path / "gemm.so", TRUST)
    done = subprocess.run(
        [sys.executable, "-P", "-c", EXPORTED, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def per_call_us(call: Callable[[], Any]) -> float:
    """Host time of a call: the median of runs too short for the stream's queue to fill up."""
    for _ in range(100):
        call()
    samples = []
    for _ in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        samples.append((time.perf_counter() - start) / 200 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def test_a_raw_call_costs_a_few_microseconds(record_property: Callable[[str, object], None]) -> None:
    kernel = loaded(artifact("16x64x128:f16:nt"))
    tensors, out = operands(kernel.gemm), torch.zeros(16, 64, dtype=torch.float16, device="cuda")
    a, b, raw = tensors["a"], tensors["b"], kernel.raw
    transposed = b.T
    actual = {
        "raw": per_call_us(lambda: raw(a, b, out)),
        "call_with_out": per_call_us(lambda: kernel(a, b, out=out)),
        "call": per_call_us(lambda: kernel(a, b)),
        "torch.matmul": per_call_us(lambda: torch.matmul(a, transposed, out=out)),
    }
    for name, microseconds in actual.items():
        record_property(name, microseconds)
    print("us per call:", ", ".join(f"{name} {microseconds:.2f}" for name, microseconds in actual.items()))
    # The bound is loose, for hosts slower than the one that the target of 3.0 is for.
    assert actual["raw"] < min(8.0, actual["torch.matmul"])
